"""
Arguments that hold a tensor of the source model padded or flattened.

Sizes that the number of devices does not divide are made larger. Either a dimension is
padded with zeros (`dist.padded` holds the original shape), or the tensor is flattened
and filled up with zeros (`dist.flattened`). Arguments of the entry function have these
attributes, and so have the results that replace these arguments. Weights files,
checkpoints and all other values outside of a program have the form of the source model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist_attributes import FLATTENED, PADDED, PADDED_RUNS
from distir.dialects.train_ops.flattening import blocks_attribute
from distir.dialects.train_ops.splits import Split, shape_of_part, splits_of
from distir.errors import DistIRError
from distir.program import argument_attributes, result_attributes

Array = npt.NDArray[Any]


def flattened(tensor: Array, length: int, splits: Sequence[Split]) -> Array:
    """
    Flattens a tensor as the op `train.flatten` does: `splits` cut the tensor into
    blocks, each block is flattened and filled up with zeros to `length` elements, and
    the blocks lie side by side.
    """
    for dim, parts, run in splits:
        sizes = tensor.shape
        tensor = tensor.reshape(*sizes[:dim], -1, parts, run, *sizes[dim + 1 :])
        tensor = np.moveaxis(tensor, dim + 1, -1)
        tensor = tensor.reshape(*sizes[:dim], -1, *sizes[dim + 1 :], parts)
    counts = [split.parts for split in splits]
    flat = tensor.reshape(-1, *counts)
    missing = np.zeros((length - len(flat), *counts), flat.dtype)
    return np.concatenate([flat, missing])


def unflattened(flat: Array, shape: Sequence[int], splits: Sequence[Split]) -> Array:
    """
    Returns the tensor of shape `shape` from the flat array `flat`. This is the inverse
    of `flattened`; `splits` are the splits that cut the tensor into blocks.
    """
    block = shape_of_part(shape, splits)
    assert block is not None  # the op's verifier, `Flattened`
    tensor = flat[: prod(block)].reshape((*block, *flat.shape[1:]))
    for dim, _, run in reversed(splits):
        sizes = tensor.shape[:-1]
        tensor = tensor.reshape(
            *sizes[:dim], -1, run, *sizes[dim + 1 :], tensor.shape[-1]
        )
        tensor = np.moveaxis(tensor, -1, dim + 1)
        tensor = tensor.reshape(*sizes[:dim], -1, *sizes[dim + 1 :])
    return tensor


@dataclass(frozen=True)
class Flattened:
    """
    The flattened form of a tensor: its original `shape`, the `length` of each flattened
    block with its zeros, and the `splits` that cut the tensor into blocks.
    """

    shape: tuple[int, ...]
    length: int
    splits: tuple[Split, ...]

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """The shape of the argument that holds the flattened tensor."""
        return self.length, *(split.parts for split in self.splits)

    @property
    def attribute(self) -> DictionaryAttr:
        """The value of the attribute `dist.flattened` that describes this form."""
        entries: dict[str, Attribute] = {
            "shape": DenseArrayBase.from_list(i64, self.shape),
            "length": IntegerAttr(self.length, i64),
        }
        if self.splits:
            entries["blocks"] = blocks_attribute(self.splits)
        return DictionaryAttr(entries)

    def flat(self, tensor: Array) -> Array:
        """
        Returns the value of the argument for the value `tensor` in its original shape.
        """
        return flattened(tensor, self.length, self.splits)

    def whole(self, flat: Array) -> Array:
        """
        Returns the value of the tensor in its original shape, for the value `flat` of
        the argument.
        """
        return unflattened(flat, self.shape, self.splits)


def flattened_of(attributes: Mapping[str, Attribute]) -> Flattened | None:
    """
    Returns the flattened form of an argument or result with these attributes, or None
    if the argument or result is not flattened. Raises DistIRError if `dist.flattened`
    is malformed.
    """
    attr = attributes.get(FLATTENED)
    if attr is None:
        return None
    own = attr.data if isinstance(attr, DictionaryAttr) else {}
    shape, length, blocks = own.get("shape"), own.get("length"), own.get("blocks")
    if isinstance(shape, DenseArrayBase) and isinstance(length, IntegerAttr):
        sizes = tuple(int(n) for n in shape.get_values())
        try:
            splits = splits_of(blocks if isinstance(blocks, ArrayAttr) else None)
        except VerifyException as error:
            raise DistIRError(f"{FLATTENED}: {error}") from error
        block = shape_of_part(sizes, splits)
        if block is not None and prod(block) <= length.value.data:
            return Flattened(sizes, length.value.data, splits)
    raise DistIRError(
        f"cannot read {FLATTENED} = {attr}; write {{shape = array<i64: 5, 7>, "
        f"length = 36 : i64}}, with a length that holds all elements"
    )


Runs = tuple[tuple[int, int], ...]
"""
The padding of a dimension, as pairs in order: a number of elements, and the number of
zeros that follow them.
"""


def elements_in(runs: Runs) -> int:
    """
    Returns the number of elements of a dimension with the padding `runs`; the zeros are
    not counted.
    """
    return sum(count for count, _ in runs)


def size_of(runs: Runs) -> int:
    """
    Returns the size of a dimension with the padding `runs`; the zeros are counted.
    """
    return sum(count + zeros for count, zeros in runs)


def places_in(runs: Runs) -> list[int]:
    """
    Returns the index that each element of a dimension has after the padding `runs`.
    """
    found: list[int] = []
    begin = 0
    for count, zeros in runs:
        found += range(begin, begin + count)
        begin += count + zeros
    return found


@dataclass(frozen=True)
class SourceForm:
    """
    The form in which an argument holds a tensor of the source model.

    - `shape`: the shape in the source model;
    - `padded`: the shape after padding with zeros; equal to `shape` without padding;
    - `flattened`: the flattened form of the padded tensor; None if the tensor is not
      flattened;
    - `runs`: the dimension that has zeros between its elements too, and its padding;
      None if all zeros come after the elements.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    flattened: Flattened | None = None
    runs: tuple[int, Runs] | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the argument."""
        return self.padded if self.flattened is None else self.flattened.flat_shape

    def stored(self, tensor: Array) -> Array:
        """
        Returns the value of the argument, given the value `tensor` in the source model.
        """
        whole = np.zeros(self.padded, tensor.dtype)
        whole[self._places] = tensor
        tensor = whole
        return tensor if self.flattened is None else self.flattened.flat(tensor)

    def source(self, stored: Array) -> Array:
        """
        Returns the value in the source model, given the value `stored` of the argument.
        """
        tensor = stored if self.flattened is None else self.flattened.whole(stored)
        return tensor[self._places]

    @property
    def _places(self) -> tuple[slice | list[int], ...]:
        """
        The index of the source tensor's elements in the padded tensor: for each
        dimension, a slice or a list of indices.
        """
        places: list[slice | list[int]] = [slice(size) for size in self.shape]
        if self.runs is not None:
            dim, runs = self.runs
            places[dim] = places_in(runs)
        return tuple(places)


def padded_attribute(shape: Sequence[int]) -> Attribute:
    """
    Returns the `dist.padded` attribute for a tensor of the original shape `shape`.
    """
    return DenseArrayBase.from_list(i64, list(shape))


def padded_attributes(
    shape: Sequence[int], dim: int, runs: Runs
) -> dict[str, Attribute]:
    """
    Returns the attributes of a padded tensor. `shape` is its original shape, and `runs`
    is the padding of its dimension `dim`.
    """
    found: dict[str, Attribute] = {PADDED: padded_attribute(shape)}
    if len(runs) > 1:
        numbers = [n for run in runs for n in run]
        found[PADDED_RUNS] = DenseArrayBase.from_list(i64, [dim, *numbers])
    return found


def source_form_of(
    type_: Attribute, attributes: Mapping[str, Attribute]
) -> SourceForm | None:
    """
    Returns the form of an argument or result with this type and these attributes, or
    None if the argument or result has the form of the source model. Raises DistIRError
    if the attributes that record the form contradict the type.
    """
    flattened, padding = flattened_of(attributes), attributes.get(PADDED)
    runs = _runs_of(attributes)
    if flattened is None and padding is None:
        return None
    shape = type_.get_shape() if isinstance(type_, TensorType) else ()
    padded = shape if flattened is None else flattened.shape
    source = padded
    if isinstance(padding, DenseArrayBase):
        source = tuple(int(n) for n in padding.get_values())
    fits = len(source) == len(padded) and all(
        0 <= n <= m for n, m in zip(source, padded, strict=True)
    )
    if runs is not None:
        dim, own = runs
        fits = fits and 0 <= dim < len(source)
        fits = fits and min(n for run in own for n in run) >= 0
        fits = fits and (elements_in(own), size_of(own)) == (source[dim], padded[dim])
    form = SourceForm(source, padded, flattened, runs)
    if not fits or form.stored_shape != shape:
        told = ", ".join(
            f"{name} = {attributes[name]}"
            for name in (PADDED, PADDED_RUNS, FLATTENED)
            if name in attributes
        )
        raise DistIRError(
            f"a tensor with {told} cannot be a {type_}; correct one of them"
        )
    return form


def _runs_of(attributes: Mapping[str, Attribute]) -> tuple[int, Runs] | None:
    """
    Returns the dimension that has zeros between its elements, and the padding of this
    dimension. Returns None if there is no such dimension.
    """
    attr = attributes.get(PADDED_RUNS)
    if attr is None or not isinstance(attr, DenseArrayBase):
        return None
    dim, *numbers = (int(n) for n in attr.get_values())
    return dim, tuple(zip(numbers[::2], numbers[1::2], strict=True))


def argument_forms(function: FuncOp) -> list[SourceForm | None]:
    """
    Returns the form of each argument of a function. The entry is None for an argument
    in the form of the source model. Raises DistIRError if the attributes that record a
    form contradict the type in the program.
    """
    types = function.function_type.inputs.data
    return list(map(source_form_of, types, argument_attributes(function)))


def result_forms(function: FuncOp) -> list[SourceForm | None]:
    """
    Returns the form of each result of a function. The entry is None for a result in the
    form of the source model. Raises DistIRError if the attributes that record a form
    contradict the type in the program.
    """
    types = function.function_type.outputs.data
    return list(map(source_form_of, types, result_attributes(function)))


def source_types(function: FuncOp) -> tuple[list[Attribute], list[Attribute]]:
    """
    Returns the types of a function's arguments, and of its results, in the source
    model. Raises DistIRError if the attributes that record a form contradict the type
    in the program.
    """
    types = function.function_type
    return (
        _source_types(types.inputs.data, argument_forms(function)),
        _source_types(types.outputs.data, result_forms(function)),
    )


def check_source_forms(function: FuncOp) -> None:
    """
    Raises DistIRError if the attributes that record the form of an argument or result
    contradict its type.
    """
    argument_forms(function)
    result_forms(function)


def _source_types(
    types: Sequence[Attribute], forms: Sequence[SourceForm | None]
) -> list[Attribute]:
    return [
        TensorType(type_.element_type, form.shape)
        if form is not None and isinstance(type_, TensorType)
        else type_
        for type_, form in zip(types, forms, strict=True)
    ]
