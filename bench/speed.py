"""
How long the tools take: `python bench/speed.py` prints the table.

From the sequential program in memory to the simulated result in CPU seconds, the least of
several runs; commands in wall time. The garbage collector is off, as in the searches: what
is measured is made once and lives to the end.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from report import table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.programs import replace_cluster

BIN = Path(sys.executable).parent

SMALL = """
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = onnx.Relu(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
"""

DEGREES = (((16, 1, 1, 1), 0.1), ((1, 16, 1, 1), 0.1), ((2, 4, 2, 8), 0.15), ((1, 2, 8, 64), 0.4))  # fmt: skip
"""D/T/P/K of GPT-2 1.6B, and the seconds that it may take."""


def least(action: Callable[[], object], runs: int, clock: Callable[[], float]) -> float:
    """Returns the least time of several runs, in seconds."""
    times: list[float] = []
    for _ in range(runs):
        gc.collect()
        start = clock()
        action()
        times.append(clock() - start)
    return min(times)


def command(*arguments: object) -> None:
    """Runs a tool of this environment quietly."""
    subprocess.run(
        [str(BIN / str(arguments[0])), *map(str, arguments[1:])],
        check=True,
        capture_output=True,
    )


def distributed(module: ModuleOp, d: int, t: int, p: int, k: int) -> None:
    """Distributes and simulates a sequential program in memory."""
    module = module.clone()
    DistributePass(d=d, t=t, p=p, k=k).apply(Context(), module)
    simulate(module)


def gpt() -> ModuleOp:
    """Returns GPT-2 1.6B, for inference."""
    module = build_gpt(24, 2048, 16, 50257, 1024, 8, "f16")
    replace_cluster(module, load_cluster("dgx2"))
    return module


def large_step(d: int) -> ModuleOp:
    """Returns a training step of 126 layers of width 16384 on 128 d devices."""
    module = build_gpt(126, 16384, 128, 128256, 16 * d, 8192)
    replace_cluster(module, load_cluster("dgx-h100", 128 * d))
    DifferentiatePass().apply(Context(), module)
    return module


def of_commands() -> float:
    """Returns the CPU seconds of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commands(folder: Path) -> list[list[str]]:
    """Returns table rows with the times of commands."""
    small, built, dist = (folder / f"{n}.mlir" for n in ("small", "gpt", "dist"))
    small.write_text(SMALL)

    def chain(size: str, how: str) -> None:
        command("distir", "build", "gpt", *size.split(), "-o", built)
        command("distir", "distribute", built, *how.split(), "-o", dist)
        command("distir", "simulate", dist)

    start = least(lambda: command("distir-opt", small), 5, time.perf_counter)
    gpt = "--layers 96 --d-model 12288 --heads 96 --vocab 51200 --batch 16 --seq 64"
    gpt_chain = partial(chain, f"{gpt} --dtype f16", "--cluster dgx2 -d 2 -t 8")
    step = "--layers 126 --d-model 16384 --heads 128 --vocab 128256 --batch 2048 --seq 8192"
    how = "--cluster dgx-h100 --devices 16384 -d 128 -t 8 -p 16 -k 16"
    step_chain = partial(chain, f"{step} --training", how)
    what = "GPT of 96 layers, width 12288: `build`, `distribute -d 2 -t 8`, `simulate`"
    large = "the training step on 16384 devices: `build`, `distribute`, `simulate`"
    return [
        ["`distir-opt` on a small file", f"{start:.2f} s (wall)", "0.5 s"],
        [what, f"{least(gpt_chain, 3, time.perf_counter):.2f} s (wall)", "3 s"],
        [large, f"{least(step_chain, 2, of_commands):.1f} s", "10 s"],
    ]


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    gc.disable()
    rows: list[list[str]] = []
    module = gpt()
    for degrees, target in DEGREES:
        taken = least(partial(distributed, module, *degrees), 5, time.process_time)
        name = "/".join(map(str, degrees))
        rows.append(
            [f"GPT-2 1.6B, D/T/P/K = {name}", f"{taken:.3f} s", f"{target:g} s"]
        )
    for d in (2, 128):
        step = large_step(d)
        taken = least(partial(distributed, step, d, 8, 16, 16), 2, time.process_time)
        what = f"training step, 126 layers, width 16384, t=8 p=16 K=16, d={d}: {128 * d} devices"
        rows.append([what, f"{taken:.2f} s", "1 s"])
    gc.enable()
    with tempfile.TemporaryDirectory() as name:
        rows += commands(Path(name))
    return "\n\n".join(
        [
            "## Speed",
            "From the sequential program in memory to the simulated result, in CPU seconds, "
            "without garbage collection; commands in wall time. The least of several runs.",
            table(["what", "time", "target"], rows),
        ]
    )


if __name__ == "__main__":
    print(section())
