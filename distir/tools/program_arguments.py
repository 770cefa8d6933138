"""The values that a program is run with: weights, given inputs and random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType

from distir.dialects.onnx_values import numpy_dtype
from distir.errors import DistIRError
from distir.interpreters.inputs import random_arguments
from distir.program import argument_names, entry_function
from distir.tools.files import Arrays, program_weights


def given_and_random_arguments(
    module: ModuleOp, path: Path, given: Arrays, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """
    The global value of every argument of the program read from `path`, by name and in
    order: from `given` or the program's weights where they hold it, else random.
    Raises DistIRError.
    """
    names = argument_names(entry_function(module))
    weights = program_weights(module, path)
    unknown = sorted(set(given) - set(names))
    if unknown:
        known = [name for name in names if name not in weights]
        raise DistIRError(
            f"the inputs hold {unknown[0]!r}, but {path} has no such argument; it takes "
            f"{', '.join(repr(n) for n in known[:8])}{', ...' if known[8:] else ''}"
        )
    values = dict(zip(names, random_arguments(module, seed, weights), strict=True))
    types = entry_function(module).function_type.inputs
    for name, type_ in zip(names, types, strict=True):
        if name in given:
            values[name] = _fitting(name, given[name], type_)
    return values


def _fitting(name: str, array: npt.NDArray[Any], type_: Any) -> npt.NDArray[Any]:
    """The array, cast within its kind of number to the argument's type."""
    if not isinstance(type_, TensorType):
        raise DistIRError(f"argument {name!r} is a {type_}, which no array can be")
    dtype = numpy_dtype(type_.element_type)
    shape = type_.get_shape()
    same_kind = dtype.kind == array.dtype.kind or (
        dtype.kind == "V" and array.dtype.kind == "f"
    )
    if array.shape != shape or not same_kind:
        raise DistIRError(
            f"input {name!r} is {array.dtype}{list(array.shape)}, but the program takes "
            f"{dtype}{list(shape)}"
        )
    return array.astype(dtype)


def arguments_by_name(
    module: ModuleOp, values: Mapping[str, npt.NDArray[Any]]
) -> list[npt.NDArray[Any]]:
    """The arguments of a program in its order. Raises DistIRError."""
    names = argument_names(entry_function(module))
    missing = sorted(set(names) ^ set(values))
    if missing:
        raise DistIRError(
            f"only one of the programs has an argument {missing[0]!r}; they are not the "
            f"same program"
        )
    return [values[name] for name in names]
