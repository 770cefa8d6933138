"""`distir check`: do two programs compute the same?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distir.tools.arguments import non_negative_number

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

_AT_ONCE = 1 << 20
"""Elements that are compared at a time, in numbers of several times their size."""


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
    """The largest relative difference allowed of outputs of that element type."""
    return 2e-2 if dtype.itemsize <= 2 and dtype.kind in "fV" else 1e-4


def largest_difference(
    reference: npt.NDArray[Any], candidate: npt.NDArray[Any]
) -> tuple[float, float]:
    """
    The largest difference of two arrays of one shape, absolute and relative to
    max(1, largest finite magnitude). Equal infinities and two NaNs do not differ; a NaN
    differs infinitely from a number, and so do two texts from each other.
    """
    if reference.dtype.kind in "OUS":
        equal = bool((reference == candidate).all())
        return (0.0, 0.0) if equal else (inf, inf)
    wide: Any = np.clongdouble if reference.dtype.kind == "c" else np.longdouble
    largest, scale = 0.0, 1.0
    left, right = reference.reshape(-1), candidate.reshape(-1)
    for start in range(0, left.size, _AT_ONCE):
        expected = left[start : start + _AT_ONCE].astype(wide)
        actual = right[start : start + _AT_ONCE].astype(wide)
        magnitudes = np.abs(expected[np.isfinite(expected)])
        scale = max(scale, float(magnitudes.max(initial=0)))
        same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0, np.abs(expected - actual))
        difference = np.where(np.isnan(difference), inf, difference)
        largest = max(largest, float(difference.max()))
    return largest, largest / scale


def _shapes(value: Any) -> list[Any]:
    """The shape of an array, or those of the arrays of a sequence."""
    return [_shapes(v) for v in value] if isinstance(value, list) else [*value.shape]


def _outputs(module: ModuleOp) -> list[tuple[str, str]]:
    """For each result of a program its name, and what it is declared to be, for messages."""
    from xdsl.dialects.builtin import TensorType

    from distir.dialects.onnx_values import numpy_dtype
    from distir.program import (
        argument_names,
        entry_function,
        result_names,
        updated_arguments,
    )

    function = entry_function(module)
    arguments, updates = argument_names(function), updated_arguments(function)
    outputs: list[tuple[str, str]] = []
    for i, (name, type_) in enumerate(
        zip(result_names(function), function.function_type.outputs, strict=True)
    ):
        text = str(type_)
        if isinstance(type_, TensorType):
            sizes = ", ".join("?" if n < 0 else str(n) for n in type_.get_shape())
            text = f"{numpy_dtype(type_.element_type)}[{sizes}]"
        if i in updates:
            text += f", the next value of {arguments[updates[i]]!r}"
        outputs.append((name, text))
    return outputs


def _check_same_outputs(
    path: Path, module: ModuleOp, other_path: Path, other: ModuleOp
) -> None:
    """Raises DistIRError unless two programs declare the same results in one order."""
    from distir.errors import DistIRError

    ours, theirs = _outputs(module), _outputs(other)
    if len(ours) != len(theirs):
        raise DistIRError(
            f"{path} has {len(ours)} outputs, but {other_path} has {len(theirs)}; they are "
            f"not the same program"
        )
    for i, ((name, text), (other_name, other_text)) in enumerate(
        zip(ours, theirs, strict=True)
    ):
        if name != other_name:
            raise DistIRError(
                f"output {i} is called {name!r} in {path} and {other_name!r} in "
                f"{other_path}; they are not the same program"
            )
        if text != other_text:
            raise DistIRError(
                f"output {name!r} is {text} in {path} and {other_text} in {other_path}; "
                f"they are not the same program"
            )


def _check_outputs(path: Path, module: ModuleOp, results: Sequence[Any]) -> None:
    """Raises DistIRError for a result that is not of the type that it is declared to be."""
    from xdsl.dialects.builtin import TensorType

    from distir.dialects.onnx_values import numpy_dtype
    from distir.errors import DistIRError
    from distir.program import entry_function

    types = entry_function(module).function_type.outputs
    for (name, text), type_, value in zip(
        _outputs(module), types, results, strict=True
    ):
        if not isinstance(type_, TensorType):
            continue
        array, sizes = np.asarray(value), type_.get_shape()
        dtype = numpy_dtype(type_.element_type)
        fits = array.ndim == len(sizes) and all(
            n < 0 or n == size for n, size in zip(sizes, array.shape, strict=True)
        )
        if not fits or (array.dtype != dtype and dtype.kind != "O"):
            raise DistIRError(
                f"output {name!r} of {path} is declared as {text}, but is "
                f"{array.dtype}{list(array.shape)}; correct the type, or report the op "
                f"that computes it"
            )


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError
    from distir.interpreters.reference import run_program
    from distir.tools.files import read_arrays, read_program
    from distir.tools.program_arguments import (
        arguments_by_name,
        given_and_random_arguments,
    )
    from distir.tools.reporting import progress, table

    with progress("reading the programs"):
        reference = read_program(arguments.reference)
        candidate = read_program(arguments.candidate)
    _check_same_outputs(arguments.reference, reference, arguments.candidate, candidate)
    given = read_arrays(arguments.inputs)
    values = given_and_random_arguments(
        reference, arguments.reference, given, arguments.seed
    )
    with progress(f"running {arguments.reference}"):
        expected = run_program(reference, list(values.values()))
    with progress(f"running {arguments.candidate}"):
        actual = run_program(candidate, arguments_by_name(candidate, values))
    _check_outputs(arguments.reference, reference, expected)
    _check_outputs(arguments.candidate, candidate, actual)

    rows: list[list[str]] = []
    failed = False
    for (name, _), left, right in zip(
        _outputs(reference), expected, actual, strict=True
    ):
        # A sequence is compared tensor by tensor.
        pairs = [(left, right)]
        shapes, other_shapes = _shapes(left), _shapes(right)
        if shapes != other_shapes:  # of dimensions without a fixed size
            raise DistIRError(
                f"output {name!r} has shape {shapes} in {arguments.reference} and "
                f"{other_shapes} in {arguments.candidate}; they are not the same program"
            )
        if isinstance(left, list):
            pairs = list(zip(left, right, strict=True))
        differences = [largest_difference(*pair) for pair in pairs]
        absolute = max((a for a, _ in differences), default=0.0)
        relative = max((r for _, r in differences), default=0.0)
        tolerance = arguments.tolerance
        if tolerance is None:
            tolerance = max((default_tolerance(a.dtype) for a, _ in pairs), default=0.0)
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
