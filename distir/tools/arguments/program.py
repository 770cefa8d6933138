"""
The arguments with which a program runs: weights, values from the user, and random
values.
"""

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
    Returns the global value of every argument of a program, by name and in order. A
    value comes from `given`, else from the program's weights, else it is random, drawn
    from `seed`. `path` is the program's file. Raises DistIRError if a value does not
    fit.
    """
    return whole_arguments(module, path, program_weights(module, path), given, seed)


def whole_arguments(
    module: ModuleOp, path: str | Path, weights: Arrays, given: Arrays, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """
    Returns the global value of every argument of a program, by name and in order. A
    value comes from `given`, else from `weights`, else it is random, drawn from `seed`.
    `path` names the program in messages. Raises DistIRError if a value does not fit.
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
    """
    Raises DistIRError if a name in `given` is not an argument of the program at `path`.
    """
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
    Returns arguments by name for a training run of a program: the values in `given`,
    and random inputs and labels if `given` does not hold all of them. In `given`, an
    input or label may have a leading dimension of steps. The runtime initialises all
    other arguments.

    `weights` has the program's weights by name, and `path` names the program in
    messages. Raises DistIRError if a value does not fit.
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
    Returns `array` cast to the element type of the argument `name`. Integers are only
    cast to integers and floats to floats. With `over_steps` the array may have an
    additional leading dimension. Raises DistIRError if the shape or the kind of number
    does not fit, or if an index is outside of its table.
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
    Returns the arguments of a program, in its order, from `values` by name. For an
    argument that merges several tensors, `values` may hold these tensors. Raises
    DistIRError if `values` lacks an argument or has an unknown one.
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
