"""
The values of a StableHLO program during the conversion.

StableHLO broadcasts by separate ops where ONNX ops broadcast their operands, and a scan
writes its results into one tensor row by row. A `LazyTensor` describes the broadcast or
the rows, and no tensor is computed until an op needs it.
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
    A value of a StableHLO program, of shape `shape` and element type `element`.

    Exactly one of the following fields stores the elements. The stored tensor
    broadcasts to `shape` as in NumPy, and may have fewer dimensions.

    - `value`: a value of the new program;
    - `array`: an array known during the conversion;
    - `rows` with `rest`: the rows along dimension 0, each of size 1 there. An entry of
      `rows` is None if the row has not been written; its elements are in the tensor
      `rest`.
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
        elements are all equal is stored as a single element.
        """
        array = np.asarray(array, numpy_dtype(element))
        if array.size > 1 and _all_equal(array):
            array = array.reshape(-1)[0]
        elif array.size == 1:
            array = array.reshape(())
        return LazyTensor(shape, element, array=np.asarray(array))

    @staticmethod
    def of(value: SSAValue, shape: Shape | None = None) -> LazyTensor:
        """
        Returns the tensor of a value that broadcasts to `shape`, by default the value's
        own shape.
        """
        type_ = value.type
        assert isinstance(type_, TensorType)
        own = type_.get_shape()
        return LazyTensor(own if shape is None else shape, type_.element_type, value)

    @property
    def base(self) -> Shape:
        """The shape of the stored value or array, which broadcasts to `shape`."""
        if self.array is not None:
            return self.array.shape
        if self.value is not None:
            assert isinstance(self.value.type, TensorType)
            return self.value.type.get_shape()
        return self.shape

    @property
    def aligned(self) -> Shape:
        """
        The shape `base`, preceded by ones up to the number of dimensions of `shape`.
        """
        return (1,) * (len(self.shape) - len(self.base)) + self.base

    @property
    def scalar(self) -> Array | None:
        """
        The common value of all elements, as an array without dimensions. It is None if
        elements may differ or are unknown.
        """
        if self.array is None or self.array.size != 1:
            return None
        return self.array.reshape(())

    @property
    def is_whole(self) -> bool:
        """Whether the stored value or array already has the full shape."""
        return self.base == self.shape

    def number(self) -> int | None:
        """
        Returns the tensor as an integer. Returns None if the tensor has dimensions or
        its value is not a known integer.
        """
        found = self.scalar
        if found is None or self.shape or found.dtype.kind not in "iu":
            return None
        return int(found)


def _all_equal(array: Array) -> bool:
    """Whether all elements of `array` have the same bits (a NaN equals itself)."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.itemsize in (1, 2, 4, 8):
        flat = flat.view(f"u{flat.dtype.itemsize}")
    return bool((flat == flat[0]).all())


def count(shape: Sequence[int]) -> int:
    """Returns the number of elements of a shape."""
    return prod(shape)
