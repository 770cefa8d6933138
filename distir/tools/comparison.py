"""Compares the outputs of two programs on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from distir.program.repacking import Repacked

_AT_ONCE = 1 << 20
"""
The number of array elements compared at a time. Comparing takes several times their
memory.
"""

_SMALL = 1e-2
"""
The largest ratio of a unit in the last place to a step's change that counts as
rounding.
"""


@dataclass(frozen=True)
class OutputDifference:
    """
    The largest difference between two programs in the output `name`. `absolute` is the
    difference. `relative` is the difference divided by the largest magnitude of the
    output, or by 1 if that is larger; on request, by the largest change of a training
    step instead. `tolerance` is the largest relative difference that is allowed.
    """

    name: str
    absolute: float
    relative: float
    tolerance: float

    @property
    def within(self) -> bool:
        """Whether the difference is allowed."""
        return self.relative <= self.tolerance


def default_tolerance(dtype: np.dtype[Any]) -> float:
    """
    Returns the largest relative difference that is allowed for outputs of type `dtype`.
    """
    return 2e-2 if dtype.itemsize <= 2 and dtype.kind in "fV" else 1e-4


def largest_difference(
    reference: npt.NDArray[Any], candidate: npt.NDArray[Any]
) -> tuple[float, float]:
    """
    Returns the largest absolute and the largest relative difference of two arrays. The
    arrays have the same shape. Differences are relative to the largest finite magnitude
    in `reference`, or to 1 if that is larger. Equal infinities do not differ, and
    neither do two NaNs. A NaN differs from a number by infinity. Two arrays of text
    that are not equal also differ by infinity.
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


def last_place(values: npt.NDArray[Any]) -> float:
    """
    Returns the unit in the last place of the largest finite number in `values`. Returns
    0 if all finite numbers are 0.
    """
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0))
    digits = int(ml_dtypes.finfo(values.dtype).nmant)
    return float(2.0 ** (np.frexp(largest)[1] - 1 - digits)) if largest else 0.0


def _shapes(value: Any) -> list[Any]:
    """
    Returns the shape of an array, or a list of the shapes of a sequence of arrays.
    """
    return [_shapes(v) for v in value] if isinstance(value, list) else [*value.shape]


class _Output(NamedTuple):
    """
    A result of a program, or one of the tensors that are merged into a result. `text`
    is its declared type, `position` the index of the result, and `part` the name of the
    tensor in the result, or None for a whole result.
    """

    name: str
    text: str
    position: int
    part: str | None = None


def _outputs(module: ModuleOp) -> list[_Output]:
    """Returns the results of a program, in order."""
    from xdsl.dialects.builtin import TensorType

    from distir.dialects.onnx_ops.values import numpy_dtype
    from distir.program import Program
    from distir.program.source_forms import source_types

    program = Program(module)
    _, types = source_types(program.entry)
    outputs: list[_Output] = []
    for result, type_ in zip(program.results, types, strict=True):
        text = str(type_)
        if isinstance(type_, TensorType):
            sizes = ", ".join("?" if n < 0 else str(n) for n in type_.get_shape())
            text = f"{numpy_dtype(type_.element_type)}[{sizes}]"
        if result.index in program.updates:
            replaced = program.arguments[program.updates[result.index]]
            text += f", the next value of {replaced.name!r}"
        outputs.append(_Output(result.name, text, result.index))
    return outputs


def _repacked_results(module: ModuleOp) -> dict[int, Repacked]:
    """
    Returns the results that update an argument with several merged tensors. The key is
    the index of the result. The value describes the merging of the tensors.
    """
    from distir.program import Program
    from distir.program.repacking import repacked_arguments

    program = Program(module)
    packed = repacked_arguments(program.entry)
    names = [argument.name for argument in program.arguments]
    return {
        i: packed[names[of]].renamed(program.results[i].name.removeprefix(names[of]))
        for i, of in program.links.items()
        if names[of] in packed
    }


def _paired(
    reference: ModuleOp, candidate: ModuleOp
) -> tuple[list[_Output], list[_Output]]:
    """
    Returns the results of two programs in matching order, which is the order of the
    programs. If the programs merge different tensors into arguments, the merged tensors
    are listed one by one, and all results are sorted by name.
    """
    ours, theirs = _outputs(reference), _outputs(candidate)
    packed = _repacked_results(reference), _repacked_results(candidate)
    if packed[0] == packed[1]:
        return ours, theirs

    def parts(found: list[_Output], packed: dict[int, Repacked]) -> list[_Output]:
        named = [
            _Output(name, "", output.position, name)
            for output in found
            if output.position in packed
            for name in packed[output.position].names
        ]
        whole = [output for output in found if output.position not in packed]
        return sorted(named + whole, key=lambda output: output.name)

    ours, theirs = parts(ours, packed[0]), parts(theirs, packed[1])
    # Parts have no declared type: their shapes are compared once there are values.
    split = {o.name for o in (*ours, *theirs) if o.part is not None}
    blank = [
        [o._replace(text="") if o.name in split else o for o in x]
        for x in (ours, theirs)
    ]
    return blank[0], blank[1]


def _value(module: ModuleOp, results: Sequence[Any], output: _Output) -> Any:
    """Returns the value of `output`, a result or a part of a result, from `results`."""
    value = results[output.position]
    if output.part is None:
        return value
    return _repacked_results(module)[output.position].split(value)[output.part]


def check_same_outputs(
    path: str | Path, module: ModuleOp, other_path: str | Path, other: ModuleOp
) -> None:
    """
    Raises DistIRError unless two programs declare the same results in the same order.
    """
    from distir.errors import DistIRError

    ours, theirs = _paired(module, other)
    if len(ours) != len(theirs):
        raise DistIRError(
            f"{path} has {len(ours)} output{'s' if len(ours) > 1 else ''}, but {other_path} "
            f"has {len(theirs)}; they are not the same program"
        )
    for i, (own, its) in enumerate(zip(ours, theirs, strict=True)):
        (name, text), (other_name, other_text) = own[:2], its[:2]
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


def _check_outputs(path: str | Path, module: ModuleOp, results: Sequence[Any]) -> None:
    """Raises DistIRError if the value of a result does not have its declared type."""
    from xdsl.dialects.builtin import TensorType

    from distir.dialects.onnx_ops.values import numpy_dtype
    from distir.errors import DistIRError
    from distir.program import entry_function
    from distir.program.source_forms import source_types

    _, types = source_types(entry_function(module))
    for (name, text, *_), type_, value in zip(
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


def compare(
    programs: tuple[ModuleOp, ModuleOp],
    paths: tuple[str | Path, str | Path],
    values: Mapping[str, npt.NDArray[Any]],
    tolerance: float | None,
    *,
    by_change: bool = False,
) -> list[OutputDifference]:
    """
    Runs two programs on the same arguments, in this process, and compares their
    outputs. `paths` name the programs in messages. `values` has the arguments by name.
    `tolerance` is the largest relative difference that is allowed; None stands for the
    default of each output's type.

    `by_change` concerns outputs that are the next values of arguments. The differences
    of these outputs are then relative to the largest change of all of them, because a
    small training step hides errors of gradients. If a unit in the last place is small
    compared with that change, this unit is subtracted from a difference, because equal
    steps may round to neighbouring values.

    Raises DistIRError if the programs have different results.
    """
    from distir.errors import DistIRError
    from distir.interpreters.reference import run_program
    from distir.program import entry_function
    from distir.program.repacking import repacked_arguments, unpacked
    from distir.tools.arguments.program import arguments_by_name
    from distir.tools.reports.reporting import progress

    (reference, candidate), (path, other_path) = programs, paths
    check_same_outputs(path, reference, other_path, candidate)
    # Arguments one by one: each program packs them in its own way.
    values = unpacked(repacked_arguments(entry_function(reference)), values)
    with progress(f"running {path}"):
        expected = run_program(reference, arguments_by_name(reference, values))
    with progress(f"running {other_path}"):
        actual = run_program(candidate, arguments_by_name(candidate, values))
    _check_outputs(path, reference, expected)
    _check_outputs(other_path, candidate, actual)
    found: list[OutputDifference] = []
    changes: dict[str, float] = {}
    units: dict[str, float] = {}
    for output, other in zip(*_paired(reference, candidate), strict=True):
        name = output.name
        left = _value(reference, expected, output)
        right = _value(candidate, actual, other)
        # A sequence is compared tensor by tensor.
        pairs = [(left, right)]
        shapes, other_shapes = _shapes(left), _shapes(right)
        if shapes != other_shapes:  # of dimensions without a fixed size
            raise DistIRError(
                f"output {name!r} has shape {shapes} in {path} and {other_shapes} in "
                f"{other_path}; they are not the same program"
            )
        if isinstance(left, list):
            pairs = list(zip(left, right, strict=True))
        elif by_change and name in values and left.dtype.kind in "fV":
            changes[name] = largest_difference(values[name], left)[0]
            units[name] = last_place(left)
        differences = [largest_difference(*pair) for pair in pairs]
        allowed = tolerance
        if allowed is None:
            allowed = max((default_tolerance(a.dtype) for a, _ in pairs), default=0.0)
        found.append(
            OutputDifference(
                name,
                max((a for a, _ in differences), default=0.0),
                max((r for _, r in differences), default=0.0),
                allowed,
            )
        )
    scale = max(changes.values(), default=0.0)
    # If a step changes hardly more than one unit, subtracting it would hide errors.
    units = {n: unit if unit <= _SMALL * scale else 0.0 for n, unit in units.items()}
    return [
        replace(each, relative=max(0.0, each.absolute - units[each.name]) / scale)
        if scale and each.name in changes
        else each
        for each in found
    ]
