"""`distir check`: do two programs compute the same?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.tools.arguments import non_negative_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, metavar="model.mlir")
    parser.add_argument("candidate", type=Path, metavar="dist.mlir")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
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


def default_tolerance(dtype: np.dtype[Any]) -> float:
    """For outputs of that element type."""
    return 2e-2 if dtype.itemsize <= 2 and dtype.kind in "fV" else 1e-4


def largest_difference(
    reference: npt.NDArray[Any], candidate: npt.NDArray[Any]
) -> tuple[float, float]:
    """
    The largest difference of two arrays of one shape, absolute and relative to
    max(1, largest finite magnitude). Equal infinities and two NaNs do not differ; a NaN
    differs infinitely from a number.
    """
    wide: Any = np.clongdouble if reference.dtype.kind == "c" else np.longdouble
    expected, actual = reference.astype(wide), candidate.astype(wide)
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    if same.all():
        return 0.0, 0.0
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0, np.abs(expected - actual))
    difference = np.where(np.isnan(difference), np.inf, difference)
    magnitudes = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(magnitudes.max())) if magnitudes.size else 1.0
    largest = float(difference.max())
    return largest, largest / scale


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError
    from distir.interpreters.reference import run_program
    from distir.program import entry_function, result_names
    from distir.tools.files import read_arrays, read_program
    from distir.tools.program_arguments import (
        arguments_by_name,
        given_and_random_arguments,
    )
    from distir.tools.reporting import progress, table

    with progress("reading the programs"):
        reference = read_program(arguments.reference)
        candidate = read_program(arguments.candidate)
    given = read_arrays(arguments.inputs)
    values = given_and_random_arguments(
        reference, arguments.reference, given, arguments.seed
    )
    with progress(f"running {arguments.reference}"):
        expected = run_program(reference, list(values.values()))
    with progress(f"running {arguments.candidate}"):
        actual = run_program(candidate, arguments_by_name(candidate, values))
    if len(expected) != len(actual):
        raise DistIRError(
            f"{arguments.reference} has {len(expected)} outputs, but "
            f"{arguments.candidate} has {len(actual)}; they are not the same program"
        )

    rows: list[list[str]] = []
    failed = False
    names = result_names(entry_function(reference))
    for name, left, right in zip(names, expected, actual, strict=True):
        if left.shape != right.shape or left.dtype != right.dtype:
            raise DistIRError(
                f"output {name!r} is {left.dtype}{list(left.shape)} in "
                f"{arguments.reference} and {right.dtype}{list(right.shape)} in "
                f"{arguments.candidate}; they are not the same program"
            )
        absolute, relative = largest_difference(left, right)
        tolerance = arguments.tolerance
        if tolerance is None:
            tolerance = default_tolerance(left.dtype)
        within = relative <= tolerance
        failed |= not within
        rows.append(
            [
                name,
                f"{absolute:.3g}",
                f"{relative:.3g}",
                f"{tolerance:.3g}",
                "equal" if within else "DIFFERS",
            ]
        )
    table(["output", "largest difference", "relative", "tolerance", ""], rows)
    return 1 if failed else 0
