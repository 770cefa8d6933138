"""`distir check`: compares the outputs of two programs on the same inputs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distir.launch.options import ProcessOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.types import non_negative_number

if TYPE_CHECKING:
    from distir.tools.comparison import OutputDifference


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
    rows = _rows(found)
    table(["output", "largest difference", "relative", "tolerance", ""], rows)
    differ = sum(not output.within for output in found)
    print(_verdict(len(found), differ))
    return 1 if differ else 0


def _rows(found: Sequence[OutputDifference]) -> list[list[str]]:
    """
    Returns the table rows of outputs. Outputs of several layers that do not differ
    share one row, with their largest differences. Each output that differs has its own
    row.
    """
    from distir.interpreters.simulator.engine.scopes import pattern

    groups: dict[tuple[str, float], list[OutputDifference]] = {}
    for output in found:
        name = pattern(output.name) if output.within else output.name
        groups.setdefault((name, output.tolerance), []).append(output)
    return [
        [
            f"{name} ({len(outputs)})" if len(outputs) > 1 else outputs[0].name,
            f"{max(output.absolute for output in outputs):.3g}",
            f"{max(output.relative for output in outputs):.3g}",
            f"{tolerance:.3g}",
            "equal" if outputs[0].within else "DIFFERS",
        ]
        for (name, tolerance), outputs in groups.items()
    ]


def _verdict(outputs: int, differ: int) -> str:
    """
    Returns the last line of the report. `outputs` is the number of outputs, and
    `differ` the number of outputs that differ.
    """
    if differ:
        return f"{differ} of {outputs} outputs differ by more than the tolerance"
    return "the output is equal" if outputs == 1 else f"all {outputs} outputs are equal"
