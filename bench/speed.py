"""
How long the tools take: `python bench/speed.py` prints the least of several runs of each.

- `distir-opt` on a small file: start-up, parsing, printing;
- a GPT of 96 layers and width 12288 from `build` to a distributed (d=2, t=8), simulated
  program, as three commands, and the same in one process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BIN = Path(sys.executable).parent
RUNS = 5

SMALL = """
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = onnx.Relu(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
"""


def least(action: Callable[[], object], runs: int = RUNS) -> float:
    """The least wall time of several runs, in seconds."""
    times: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def command(*arguments: object) -> None:
    """Runs a tool of this environment quietly."""
    subprocess.run(
        [str(BIN / str(arguments[0])), *map(str, arguments[1:])],
        check=True,
        capture_output=True,
    )


def in_one_process() -> None:
    """The chain without start-up and files between the steps."""
    from xdsl.context import Context

    from distir.frontends.builders import build_gpt
    from distir.hardware import load_cluster
    from distir.interpreters.cost import simulate
    from distir.passes.distribute import DistributePass

    module = build_gpt(96, 12288, 96, 51200, 16, 64, "f16")
    block = module.body.block
    assert block.first_op is not None
    block.insert_op_before(load_cluster("dgx2"), block.first_op)
    DistributePass(d=2, t=8).apply(Context(), module)
    simulate(module)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = folder / "small.mlir"
        small.write_text(SMALL)
        gpt, dist = folder / "gpt.mlir", folder / "dist.mlir"
        size = (
            "--layers 96 --d-model 12288 --heads 96 --vocab 51200 --batch 16 --seq 64"
        )

        def chain() -> None:
            command(
                "distir", "build", "gpt", *size.split(), "--dtype", "f16", "-o", gpt
            )
            command(
                "distir", "distribute", gpt, "--cluster", "dgx2", "-d", 2, "-t", 8,
                "-o", dist,
            )  # fmt: skip
            command("distir", "simulate", dist)

        rows = [
            (
                "distir-opt on a small file",
                least(lambda: command("distir-opt", small)),
                0.5,
            ),
            ("96-layer GPT, three commands", least(chain, 3), 3.0),
            ("96-layer GPT, one process", least(in_one_process, 3), 3.0),
        ]
    for what, seconds, target in rows:
        print(f"{what:32} {seconds:6.2f} s   (target {target:g} s)")


if __name__ == "__main__":
    main()
