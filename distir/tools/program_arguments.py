"""The values that a program is run with: weights, given inputs and random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.errors import DistIRError
from distir.interpreters.inputs import random_arguments
from distir.interpreters.lookups import Uses
from distir.program import argument_names, argument_roles, describe, entry_function
from distir.program.repacking import repacked_weights
from distir.program.source_forms import source_types
from distir.tools.files import Arrays, program_weights

_BATCHES = ("input", "label")


def given_and_random_arguments(
    module: ModuleOp, path: Path, given: Arrays, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """
    Returns the global value of every argument of the program read from `path`, by name and
    in order: from `given` or the program's weights if these hold it, else random. Raises
    DistIRError.
    """
    return whole_arguments(module, path, program_weights(module, path), given, seed)


def whole_arguments(
    module: ModuleOp, path: str | Path, weights: Arrays, given: Arrays, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """
    Does the same for a program with these weights; `path` names it in messages. Raises
    DistIRError.
    """
    names = argument_names(entry_function(module))
    check_known(module, path, weights, given)
    values = dict(zip(names, random_arguments(module, seed, weights), strict=True))
    types, _ = source_types(entry_function(module))
    for name, type_ in zip(names, types, strict=True):
        if name in given:
            values[name] = _fitting(module, name, given[name], type_)
    return values


def check_known(
    module: ModuleOp, path: str | Path, weights: Arrays, given: Arrays
) -> None:
    """Raises DistIRError for an input that is no argument of the program at `path`."""
    names = argument_names(entry_function(module))
    unknown = sorted(set(given) - set(names))
    if unknown:
        known = [name for name in names if name not in weights]
        raise DistIRError(
            f"the inputs hold {unknown[0]!r}, but {path} has no such argument; it takes "
            f"{', '.join(repr(n) for n in known[:8])}{', ...' if known[8:] else ''}"
        )


def training_arguments(
    module: ModuleOp, path: str | Path, weights: Arrays, given: Arrays, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """
    Returns the arguments, by name, of a training of a program with these weights: all of
    `given`, and random inputs and labels where it does not hold them. Inputs and labels in
    `given` may have one more dimension in front, of steps. The runtime initialises the
    rest. Raises DistIRError.
    """
    function = entry_function(module)
    names, roles = argument_names(function), argument_roles(function)
    types, _ = source_types(function)
    batches = {n for n, role in zip(names, roles, strict=True) if role in _BATCHES}
    check_known(module, path, weights, given)
    values = {
        name: _fitting(module, name, given[name], type_, over_steps=name in batches)
        for name, type_ in zip(names, types, strict=True)
        if name in given
    }
    if batches <= values.keys():
        return values
    empty = dict.fromkeys(set(names) - batches, np.empty(0))  # so that none is drawn
    drawn = zip(names, random_arguments(module, seed, empty), strict=True)
    return {n: array for n, array in drawn if n in batches} | values


def _fitting(
    module: ModuleOp,
    name: str,
    array: npt.NDArray[Any],
    type_: Any,
    over_steps: bool = False,
) -> npt.NDArray[Any]:
    """
    Returns the array, cast within its kind of number to the argument's type; with
    `over_steps` it may have one more dimension in front. Raises DistIRError, also for
    indices that lie outside a table.
    """
    if not isinstance(type_, TensorType):
        raise DistIRError(f"argument {name!r} is a {type_}, which no array can be")
    dtype = numpy_dtype(type_.element_type)
    shape = type_.get_shape()
    same_kind = dtype.kind == array.dtype.kind or (
        dtype.kind == "V" and array.dtype.kind == "f"
    )
    has_steps = over_steps and array.ndim == len(shape) + 1 and len(array) > 0
    function, uses = entry_function(module), Uses(module)
    value = function.body.block.args[argument_names(function).index(name)]
    if (array.shape[1:] if has_steps else array.shape) != shape or not same_kind:
        reader = uses.reader(value)
        where = "" if reader is None else f", which {describe(reader)} reads"
        raise DistIRError(
            f"input {name!r} is {array.dtype}{list(array.shape)}, but the program takes "
            f"{dtype}{list(shape)}{where}"
        )
    if dtype.kind in "iu":
        for lookup in uses.lookups(value, exactly=True):
            lookup.check(name, array)
    return array.astype(dtype)


def arguments_by_name(
    module: ModuleOp, values: Mapping[str, npt.NDArray[Any]]
) -> list[npt.NDArray[Any]]:
    """
    Returns the arguments of a program in its order; one that holds several tensors may be
    given as these. Raises DistIRError.
    """
    function = entry_function(module)
    names = argument_names(function)
    values = repacked_weights(function, values)
    missing = sorted(set(names) ^ set(values))
    if missing:
        raise DistIRError(
            f"only one of the programs has an argument {missing[0]!r}; they are not the "
            f"same program"
        )
    return [values[name] for name in names]
