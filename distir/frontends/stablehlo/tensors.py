"""
The values of a StableHLO program while it is converted.

StableHLO writes out what ONNX leaves to broadcasting, and a scan writes its results
into one tensor, row by row. A `LazyTensor` keeps both unwritten until an op needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue

from distir.dialects.onnx_ops.values import numpy_dtype

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """
    A value of a StableHLO program, of `shape` and element type `element`.

    Exactly one of these holds it. Each broadcasts to `shape` as in NumPy, and may have
    fewer dimensions.

    - `value`: a value of the new program;
    - `array`: a known array;
    - `rows`: the parts along dimension 0 of `shape`, each of size 1 there and None
      where nothing was written, and `rest`, the tensor that they are written into.
    """

    shape: Shape
    element: Attribute
    value: SSAValue | None = None
    array: Array | None = None
    rows: tuple[LazyTensor | None, ...] = ()
    rest: LazyTensor | None = None

    @staticmethod
    def known(array: Array, shape: Shape, element: Attribute) -> LazyTensor:
        """
        Returns the tensor of an array that broadcasts to `shape`. An array whose
        elements are all equal is kept as one element.
        """
        array = np.asarray(array, numpy_dtype(element))
        if array.size > 1 and _all_equal(array):
            array = array.reshape(-1)[0]
        elif array.size == 1:
            array = array.reshape(())
        return LazyTensor(shape, element, array=np.asarray(array))

    @staticmethod
    def of(value: SSAValue, shape: Shape | None = None) -> LazyTensor:
        """Returns the tensor of a value, which broadcasts to `shape`."""
        type_ = value.type
        assert isinstance(type_, TensorType)
        own = type_.get_shape()
        return LazyTensor(own if shape is None else shape, type_.element_type, value)

    @property
    def base(self) -> Shape:
        """The shape of what holds the tensor, which broadcasts to `shape`."""
        if self.array is not None:
            return self.array.shape
        if self.value is not None:
            assert isinstance(self.value.type, TensorType)
            return self.value.type.get_shape()
        return self.shape

    @property
    def aligned(self) -> Shape:
        """`base` with ones in front, one size for each dimension of `shape`."""
        return (1,) * (len(self.shape) - len(self.base)) + self.base

    @property
    def scalar(self) -> Array | None:
        """The element that all elements are equal to, or None if it is not known."""
        if self.array is None or self.array.size != 1:
            return None
        return self.array.reshape(())

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to broadcast."""
        return self.base == self.shape

    def number(self) -> int | None:
        """The integer that the tensor is known to hold, or None."""
        found = self.scalar
        if found is None or self.shape or found.dtype.kind not in "iu":
            return None
        return int(found)


def _all_equal(array: Array) -> bool:
    """Whether all elements have the same bits (a NaN equals itself)."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.itemsize in (1, 2, 4, 8):
        flat = flat.view(f"u{flat.dtype.itemsize}")
    return bool((flat == flat[0]).all())


def sizes_of(type_: Attribute) -> Shape:
    """Returns the shape of a tensor type."""
    assert isinstance(type_, TensorType)
    return type_.get_shape()


def count(shape: Sequence[int]) -> int:
    """Returns the number of elements of a shape."""
    return prod(shape)
