"""`distir check`: compares the outputs of two programs on the same inputs."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.launch.options import ProcessOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.types import non_negative_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, metavar="model.mlir")
    parser.add_argument("candidate", type=Path, metavar="dist.mlir")
    add_options(parser, ProcessOptions, ("seed",), help="of random inputs")
    parser.add_argument(
        "--tolerance",
        type=non_negative_number,
        metavar="X",
        help="largest difference allowed, relative to the output's largest magnitude or "
        "1, whichever is more (default 1e-4, for 16-bit outputs 2e-2)",
    )
    parser.add_argument(
        "--inputs", type=Path, metavar="FILE.npz", help="arguments by name"
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.tools.entry_checks import compared
    from distir.tools.files import program_weights, read_arrays, read_program
    from distir.tools.reports.reporting import progress, table

    paths = arguments.reference, arguments.candidate
    with progress("reading the programs"):
        reference, candidate = map(read_program, paths)
    given = read_arrays(arguments.inputs)
    options = arguments.seed, arguments.tolerance
    weights = program_weights(reference, paths[0])
    found = compared((reference, candidate), paths, weights, given, *options)
    rows = [
        [
            output.name,
            f"{output.absolute:.3g}",
            f"{output.relative:.3g}",
            f"{output.tolerance:.3g}",
            "equal" if output.within else "DIFFERS",
        ]
        for output in found
    ]
    table(["output", "largest difference", "relative", "tolerance", ""], rows)
    return 0 if all(output.within for output in found) else 1
