"""
Random arguments for a program. The arguments are valid for the program's ops; for
example, indices are within their tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import FloatAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist_attributes import DEFAULT
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.errors import DistIRError
from distir.interpreters.lookups import Uses
from distir.program import Program
from distir.program.repacking import Repacked, repacked_of
from distir.program.source_forms import source_types

Array = npt.NDArray[Any]

PARAMETER_SCALE = 0.02
"""
The standard deviation of random parameters, as used to initialise language models.
"""


def random_arguments(
    module: ModuleOp, seed: int, weights: Mapping[str, npt.ArrayLike] | None = None
) -> list[Array]:
    """
    Returns the global value of every argument of the entry function, in order and in
    the form of the source model. An argument whose name is in `weights` has the value
    given there. All other arguments are random. A random value depends only on `seed`
    and the argument's name, so two programs with the same arguments get the same
    values.

    Parameters are normally distributed with standard deviation `PARAMETER_SCALE`.
    States of optimizers are the absolute values of such numbers, because a state may be
    an average of squares. Other floats have a standard normal distribution. Integers
    that index a table are valid indices of the table. Other integers, such as masks,
    are ones; if they have two dimensions, the end of every other row is zeros, like
    padding. An argument with a default value has its default value. Raises DistIRError
    for an argument that is not a tensor or has no fixed size.
    """
    program, uses = Program(module), Uses(module)
    types, _ = source_types(program.entry)
    found: list[Array] = []
    for argument, type_ in zip(program.arguments, types, strict=True):
        name, role = argument.name, argument.role
        default = argument.attributes.get(DEFAULT)
        if weights is not None and name in weights:
            found.append(np.asarray(weights[name]))
        elif isinstance(default, FloatAttr):
            found.append(np.array(default.value.data))
        elif (repacked := repacked_of(argument.attributes)) is not None:
            found.append(_repacked(repacked, type_, role, seed))
        else:
            found.append(_random(name, type_, role, _bound(uses, argument.value), seed))
    return found


def _repacked(repacked: Repacked, type_: Attribute, role: str, seed: int) -> Array:
    """
    Returns the value of an argument that packs several tensors into one. Each packed
    tensor has the value that it would have as an argument of its own.
    """
    parts: dict[str, Array] = {}
    for name, size in zip(repacked.names, repacked.sizes, strict=True):
        own = type_
        if isinstance(type_, TensorType):
            shape = list(type_.get_shape())
            shape[repacked.dim] = size
            own = TensorType(type_.element_type, shape)
        parts[name] = _random(name, own, role, None, seed)
    return repacked.packed(parts)


def _random(
    name: str, type_: Attribute, role: str, bound: int | None, seed: int
) -> Array:
    if not isinstance(type_, TensorType):
        raise DistIRError(
            f"argument {name!r} is a {type_}, for which there are no random values; "
            "give the inputs in a file"
        )
    shape = type_.get_shape()
    if any(size < 0 for size in shape):
        raise DistIRError(
            f"argument {name!r} has no fixed size ({type_}); give its dimensions at import "
            "(--dim NAME=SIZE)"
        )
    dtype = numpy_dtype(type_.element_type)
    digest = hashlib.sha256(name.encode()).digest()
    generator = np.random.default_rng([abs(seed), int.from_bytes(digest[:8], "big")])
    if dtype.kind in "iu":
        if bound is not None:
            return generator.integers(0, max(bound, 1), shape).astype(dtype)
        return _mask(shape).astype(dtype)
    if dtype.kind == "b":
        return _mask(shape).astype(dtype)
    if dtype.kind == "O":
        return np.full(shape, "text", dtype=object)
    numbers = generator.standard_normal(shape)
    if dtype.kind == "c":
        numbers = numbers + 1j * generator.standard_normal(shape)
    if role in ("parameter", "state"):
        numbers = numbers * PARAMETER_SCALE
    if role == "state":
        numbers = np.abs(numbers)
    return numbers.astype(dtype)


def _bound(uses: Uses, value: SSAValue) -> int | None:
    """
    Returns the size of the smallest table that `value` indexes, or None if `value`
    indexes no table.
    """
    return min((lookup.size for lookup in uses.lookups(value)), default=None)


def _mask(shape: tuple[int, ...]) -> Array:
    mask = np.ones(shape, dtype=np.int64)
    if len(shape) == 2:
        mask[1::2, shape[1] - shape[1] // 4 :] = 0
    return mask
