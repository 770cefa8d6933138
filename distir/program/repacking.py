"""
Arguments that hold several tensors of the source model.

The attribute `dist.repacked` on an argument of the entry function gives the names of
the tensors, the dimension in which they are concatenated, and their sizes in this
dimension. Weights files, checkpoints and random values use the names of the tensors.
Files that were written before a `schedule.merge` can therefore be used after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.dialects.dist_attributes import REPACKED
from distir.errors import DistIRError
from distir.program import argument_attributes, argument_names

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Repacked:
    """
    The tensors in a repacked argument: `dim` is the dimension in which they are
    concatenated, `names` are their names, and `sizes` their sizes in this dimension.

    With several `groups`, each tensor is cut into `groups` pieces of equal size. The
    argument holds the first piece of each tensor, then the second piece of each, and so
    on. An equal part of the argument is thus an equal part of every tensor, even if the
    tensors have different sizes.
    """

    dim: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: int = 1

    @property
    def attribute(self) -> DictionaryAttr:
        """The value of the attribute `dist.repacked` that describes these tensors."""
        found: dict[str, Attribute] = {
            "dim": IntegerAttr(self.dim, i64),
            "names": ArrayAttr([StringAttr(name) for name in self.names]),
            "sizes": ArrayAttr([IntegerAttr(size, i64) for size in self.sizes]),
        }
        if self.groups > 1:
            found["groups"] = IntegerAttr(self.groups, i64)
        return DictionaryAttr(found)

    def renamed(self, suffix: str) -> Repacked:
        """
        Returns a copy with `suffix` added to each name. The copy describes an argument
        with related tensors, such as the optimizer's states of these tensors.
        """
        names = tuple(f"{name}{suffix}" for name in self.names)
        return Repacked(self.dim, names, self.sizes, self.groups)

    def split(self, whole: Array) -> dict[str, Array]:
        """Returns the tensors in the argument's value `whole`, by name."""
        ends = np.cumsum(self.sizes)[:-1] // self.groups
        parts = np.split(self._apart(whole), ends, self.dim + 1)
        shapes = (
            (*whole.shape[: self.dim], size, *whole.shape[self.dim + 1 :])
            for size in self.sizes
        )
        return {
            name: part.reshape(shape)
            for name, part, shape in zip(self.names, parts, shapes, strict=True)
        }

    def _apart(self, value: Array) -> Array:
        """
        Returns a view of `value` in which the groups are an additional dimension before
        `dim`.
        """
        before, after = value.shape[: self.dim], value.shape[self.dim + 1 :]
        return value.reshape(*before, self.groups, -1, *after)

    def packed(self, parts: Mapping[str, npt.ArrayLike]) -> Array:
        """
        Returns the value of the argument, given its tensors by name. Raises DistIRError
        if the shapes of the tensors do not fit.
        """
        arrays = [np.asarray(parts[name]) for name in self.names]
        for name, size, array in zip(self.names, self.sizes, arrays, strict=True):
            if array.ndim <= self.dim or array.shape[self.dim] != size:
                raise DistIRError(
                    f"{name!r} has shape {list(array.shape)}, but the program takes "
                    f"{size} of it in dimension {self.dim}; use the weights of the model "
                    f"that was merged"
                )
        found = np.concatenate([self._apart(array) for array in arrays], self.dim + 1)
        first = arrays[0].shape
        return found.reshape(*first[: self.dim], -1, *first[self.dim + 1 :])


def repacked_of(attributes: Mapping[str, Attribute]) -> Repacked | None:
    """
    Returns the tensors in an argument with these attributes, or None if the argument is
    not repacked. Raises DistIRError if `dist.repacked` is malformed.
    """
    attr = attributes.get(REPACKED)
    if attr is None:
        return None
    own = attr.data if isinstance(attr, DictionaryAttr) else {}
    dim, names, sizes = own.get("dim"), own.get("names"), own.get("sizes")
    groups = own.get("groups", IntegerAttr(1, i64))
    if (
        isinstance(dim, IntegerAttr)
        and isinstance(names, ArrayAttr)
        and isinstance(sizes, ArrayAttr)
        and isinstance(groups, IntegerAttr)
    ):
        texts = [n.data for n in names.data if isinstance(n, StringAttr)]
        numbers = [n.value.data for n in sizes.data if isinstance(n, IntegerAttr)]
        count = groups.value.data
        fits = count > 0 and not any(number % count for number in numbers)
        if fits and len(names) == len(texts) == len(sizes) == len(numbers):
            return Repacked(dim.value.data, tuple(texts), tuple(numbers), count)
    raise DistIRError(
        f'cannot read {REPACKED} = {attr}; write {{dim = 0 : i64, names = ["a", "b"], '
        f"sizes = [4, 4]}}"
    )


def repacked_arguments(function: FuncOp) -> dict[str, Repacked]:
    """Returns the repacked arguments of a function, by name."""
    names = argument_names(function)
    found = map(repacked_of, argument_attributes(function))
    return {n: r for n, r in zip(names, found, strict=True) if r is not None}


class _RepackedWeights(Mapping[str, Array]):
    """
    Weights by the names of a program's arguments. The value of a repacked argument is
    built from its tensors when it is looked up.
    """

    def __init__(self, weights: Mapping[str, Array], packed: Mapping[str, Repacked]):
        self._weights = weights
        self._packed = packed
        parts = {name for own in packed.values() for name in own.names}
        self._names = [name for name in weights if name not in parts]
        self._names += packed

    def __getitem__(self, name: str) -> Array:
        if name in self._packed:
            return self._packed[name].packed(self._weights)
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def repacked_weights(
    function: FuncOp, weights: Mapping[str, Array]
) -> Mapping[str, Array]:
    """
    Returns `weights` by the names of the function's arguments. If `weights` has the
    tensors of a repacked argument instead of the argument, its value is built from them
    when it is looked up.
    """
    packed = {
        name: own
        for name, own in repacked_arguments(function).items()
        if name not in weights and all(part in weights for part in own.names)
    }
    return _RepackedWeights(weights, packed) if packed else weights


def unpacked(
    packed: Mapping[str, Repacked], values: Mapping[str, Array]
) -> dict[str, Array]:
    """
    Returns `values` by name, with each repacked argument in `packed` replaced by its
    tensors.
    """
    found: dict[str, Array] = {}
    for name, value in values.items():
        found |= packed[name].split(value) if name in packed else {name: value}
    return found
