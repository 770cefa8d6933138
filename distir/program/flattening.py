"""
Tensors that are flattened and filled up with zeros at the end (`train.flatten`), and the
attribute `dist.flattened`, which marks arguments and results that are.
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
    i64,
)
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist import FLATTENED
from distir.dialects.train_ops.flattening import blocks_attribute
from distir.dialects.train_ops.splits import Split, shape_of_part, splits_of
from distir.errors import DistIRError

Array = npt.NDArray[Any]


def flattened(tensor: Array, length: int, splits: Sequence[Split]) -> Array:
    """
    Computes what `train.flatten` does: the blocks side by side, with zeros up to that
    length.
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
    """Computes what `train.unflatten` does: the tensor of that shape."""
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
    The tensor that an argument stands for: its shape, its length when flattened with the
    zeros at the end, and the splits that cut it into blocks.
    """

    shape: tuple[int, ...]
    length: int
    splits: tuple[Split, ...]

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """The shape of the argument."""
        return self.length, *(split.parts for split in self.splits)

    @property
    def attribute(self) -> DictionaryAttr:
        """Returns the value of `dist.flattened`."""
        entries: dict[str, Attribute] = {
            "shape": DenseArrayBase.from_list(i64, self.shape),
            "length": IntegerAttr(self.length, i64),
        }
        if self.splits:
            entries["blocks"] = blocks_attribute(self.splits)
        return DictionaryAttr(entries)

    def flat(self, tensor: Array) -> Array:
        """Returns the value of the argument, given that of the tensor."""
        return flattened(tensor, self.length, self.splits)

    def whole(self, flat: Array) -> Array:
        """Returns the value of the tensor, given that of the argument."""
        return unflattened(flat, self.shape, self.splits)


def flattened_of(attributes: Mapping[str, Attribute]) -> Flattened | None:
    """
    Returns what an argument or result with these attributes stands for, if it is flattened.
    Raises DistIRError.
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
