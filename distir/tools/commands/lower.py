"""`distir lower`: turns a distributed program into a PyTorch package."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from distir.tools.arguments import add_kernels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="dist.mlir")
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="DIR",
        help="the folder of the package; made if needed",
    )
    parser.add_argument(
        "--evaluation",
        action="store_true",
        help="let the package of a training step evaluate too (main.py --eval-every)",
    )
    add_kernels(parser)


def run(arguments: argparse.Namespace) -> int:
    from distir.lowering.torch_package import write_package
    from distir.tools.files import program_weights, read_program
    from distir.tools.reporting import note, progress
    from distir.weights import weights_file

    with progress(f"lowering {arguments.program}"):
        module = read_program(arguments.program)
        weights = weights_file(module, arguments.program)
        if weights is not None and weights.exists():
            program_weights(module, arguments.program)  # refuses those of another one
        package = write_package(
            module,
            arguments.output,
            weights,
            evaluation=arguments.evaluation,
            kernels=arguments.kernels,
        )
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    note(
        f"start it with torchrun --nproc-per-node {manifest['processes']} "
        f"{package / 'main.py'} (--help says how to give it inputs)"
    )
    return 0
