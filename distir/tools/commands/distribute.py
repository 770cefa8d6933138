"""`distir distribute`: a sequential program becomes a distributed one."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments import add_cluster_arguments
from distir.tools.distribution import add_distribution_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="model.mlir")
    add_cluster_arguments(parser)
    add_distribution_arguments(parser)
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="dist.mlir"
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.tools.distribution import distributed_as_asked
    from distir.tools.files import keep_weights_reachable, read_program, write_program
    from distir.tools.reporting import note, progress

    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
    distributed_as_asked(module, arguments)
    beside = keep_weights_reachable(module, arguments.program, arguments.output)
    if beside is not None:
        note(f"the weights are now also at {beside}, beside {arguments.output.name}")
    write_program(module, arguments.output)
    return 0
