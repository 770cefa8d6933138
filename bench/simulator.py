"""
How fast the simulator steps through a program op by op: `python bench/simulator.py`.

GPT-2 (24 layers, d 2048, sequences of 8, batch 1024) under D/T/P/K, inference and training,
with `flat=True`: no summaries, every op on every device. An op counts once, on however many
devices it runs. `stepping` is executing the program, which is compiled already (each
function once); `in all` is `simulate(module, flat=True)`, from the module to the result. CPU
seconds, the least of several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from report import table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.programs import replace_cluster

STRATEGIES = ((16, 1, 1, 1), (1, 16, 1, 1), (2, 4, 2, 8), (1, 2, 8, 64))
RUNS = 3


def least(action: Callable[[], object]) -> float:
    """Returns the least CPU seconds of several runs."""
    times: list[float] = []
    for _ in range(RUNS):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def program(training: bool) -> ModuleOp:
    """Returns the sequential program, with its cluster."""
    module = build_gpt(24, 2048, 16, 50304, 1024, 8, "f16", fused_attention=False)
    if training:
        DifferentiatePass().apply(Context(), module)
    replace_cluster(module, load_cluster("dgx2"))
    return module


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    rows: list[list[str]] = []
    for training in (False, True):
        sequential = program(training)
        for d, t, p, k in STRATEGIES:
            module = sequential.clone()
            DistributePass(d=d, t=t, p=p, k=k).apply(Context(), module)
            result = simulate(module, flat=True)
            stepping = result.ops / least(result.run.simulate)
            in_all = result.ops / least(lambda m=module: simulate(m, flat=True))
            rows.append(
                [
                    "training" if training else "inference",
                    f"{d}/{t}/{p}/{k}",
                    f"{result.ops:,}",
                    f"{stepping:,.0f}",
                    f"{in_all:,.0f}",
                ]
            )
    head = ["GPT-2 1.6B", "D/T/P/K", "ops", "stepping, ops/s", "from the module, ops/s"]
    return f"""## Flat mode

`python bench/simulator.py`: `simulate(flat=True)` steps through every op on each of 16 devices, without summaries; an op counts
once, on however many devices it runs. Per CPU second, the best of {RUNS} runs. `stepping` is executing the program,
`from the module` also planning it (each function once). Target: 150,000 ops/s.

{table(head, rows)}
"""


if __name__ == "__main__":
    print(section())
