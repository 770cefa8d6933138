"""
Appends `onnx` and `train` ops. Their operands may be tensors for which no value exists
yet, such as known arrays and broadcasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import LocationAttr, UnknownLoc, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import tensor_of
from distir.frontends.stablehlo.tensors import Array, LazyTensor, Shape, count

CONSTANT_ELEMENTS = 1024
"""The most elements of a constant in the program; larger constants become arguments."""


class TensorBuilder:
    """
    Appends ops to `block`. Each added op gets the current `scope`, and `location` as
    its position in the source code.
    """

    def __init__(self, block: Block):
        self.block = block
        self.scope = ""
        self.location: LocationAttr = UnknownLoc()
        self._constants: dict[tuple[str, Shape, bytes], SSAValue] = {}
        self._stacks: dict[LazyTensor, SSAValue] = {}

    def add(self, op: Operation) -> Operation:
        """
        Appends an op with the current location, and with the current scope if there is
        one. Returns the op.
        """
        op.location = self.location
        if self.scope:
            op.attributes[SCOPE] = SCOPE.attr(self.scope)
        self.block.add_op(op)
        return op

    def op(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        shape: Sequence[int],
        element: Attribute,
        **attributes: Any,
    ) -> SSAValue:
        """
        Appends the ONNX op `name` with one result of shape `shape` and type `element`,
        and returns the result.
        """
        made = operator(name).build_op(
            inputs, [tensor_of(element, tuple(shape))], attributes
        )
        return self.add(made).results[0]

    def constant(self, array: Array, element: Attribute) -> SSAValue:
        """
        Returns a constant with the elements of `array` and the element type `element`.
        Equal constants share one op.
        """
        array = np.asarray(array, numpy_dtype(element))
        key = (str(element), array.shape, array.tobytes())
        if key not in self._constants:
            scope, self.scope = self.scope, ""
            self._constants[key] = self.op(
                "Constant", [], array.shape, element, value=array
            )
            self.scope = scope
        return self._constants[key]

    def integers(self, *values: int) -> SSAValue:
        """Returns a constant vector of 64-bit integers with the elements `values`."""
        return self.constant(np.array(values, np.int64), i64)

    def integer(self, value: int) -> SSAValue:
        """Returns a 64-bit integer constant without dimensions."""
        return self.constant(np.array(value, np.int64), i64)

    def base(self, tensor: LazyTensor) -> SSAValue:
        """
        Returns a value that can be broadcast to the shape of `tensor`. It may have
        fewer or smaller dimensions.
        """
        if tensor.rest is not None:
            return self.stacked(tensor)
        if tensor.value is not None:
            return tensor.value
        assert tensor.array is not None
        return self.constant(tensor.array, tensor.element)

    def whole(self, tensor: LazyTensor) -> SSAValue:
        """Returns a value with exactly the shape of `tensor`."""
        value = self.base(tensor)
        if tensor.is_whole:
            return value
        shape = tensor.shape
        if count(tensor.base) == count(shape):
            return self.reshape(value, shape)
        return self.op("Expand", [value, self.integers(*shape)], shape, tensor.element)

    def with_rank(self, tensor: LazyTensor) -> SSAValue:
        """
        Returns a value that can be broadcast to the shape of `tensor` and has the same
        number of dimensions as `tensor`.
        """
        return self.reshape(self.base(tensor), tensor.aligned)

    def reshape(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """
        Returns `value` in the shape `shape`. If `value` is the result of a reshape, one
        new reshape replaces both.
        """
        while isinstance(value.owner, OnnxOp) and value.owner.name == "onnx.Reshape":
            value = value.owner.operands[0]
        old = LazyTensor.of(value)
        if old.shape == tuple(shape):
            return value
        return self.op("Reshape", [value, self.integers(*shape)], shape, old.element)

    def transpose(self, value: SSAValue, order: Sequence[int]) -> SSAValue:
        """
        Returns `value` with its dimensions permuted: dimension i of the result is
        dimension `order[i]` of `value`.
        """
        old = LazyTensor.of(value)
        if list(order) == list(range(len(old.shape))):
            return value
        shape = [old.shape[dim] for dim in order]
        return self.op("Transpose", [value], shape, old.element, perm=list(order))

    def slice(
        self,
        value: SSAValue,
        starts: Sequence[int],
        limits: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> SSAValue:
        """
        Returns the part of `value` from `starts` to before `limits`, with one bound per
        dimension. `strides` are the steps, by default 1.
        """
        old = LazyTensor.of(value)
        steps = list(strides or [1] * len(old.shape))
        dims = [
            dim
            for dim, size in enumerate(old.shape)
            if (starts[dim], limits[dim], steps[dim]) != (0, size, 1)
        ]
        if not dims:
            return value
        shape = list(old.shape)
        for dim in dims:
            shape[dim] = max(0, -((starts[dim] - limits[dim]) // steps[dim]))
        bounds = [
            self.integers(*[values[dim] for dim in dims]) for values in (starts, limits)
        ]
        axes, by = self.integers(*dims), None
        if any(steps[dim] != 1 for dim in dims):
            by = self.integers(*[steps[dim] for dim in dims])
        return self.op("Slice", [value, *bounds, axes, by], shape, old.element)

    def concatenated(self, values: Sequence[SSAValue], dim: int) -> SSAValue:
        """Returns `values` concatenated along dimension `dim`."""
        if len(values) == 1:
            return values[0]
        kinds = [LazyTensor.of(value) for value in values]
        shape = list(kinds[0].shape)
        shape[dim] = sum(kind.shape[dim] for kind in kinds)
        return self.op("Concat", values, shape, kinds[0].element, axis=dim)

    def cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        """Returns `value` cast to the element type `element`."""
        from distir.dialects.onnx_ops.values import onnx_element_type

        old = LazyTensor.of(value)
        if old.element == element:
            return value
        to = onnx_element_type(element)
        return self.op("Cast", [value], old.shape, element, to=to)

    def stacked(self, tensor: LazyTensor) -> SSAValue:
        """
        Returns the value of a tensor whose rows were written one by one: the written
        rows, and the rows of `tensor.rest` elsewhere. All uses of the tensor share the
        value.
        """
        if tensor in self._stacks:
            return self._stacks[tensor]
        assert tensor.rest is not None
        parts: list[SSAValue] = []
        index = 0
        while index < len(tensor.rows):
            row = tensor.rows[index]
            if row is not None:
                parts.append(self.whole(row))
                index += 1
                continue
            start = index
            while index < len(tensor.rows) and tensor.rows[index] is None:
                index += 1
            part = self.row(tensor.rest, start, index - start)
            parts.append(self.whole(part))
        found = self._stacks[tensor] = self.concatenated(parts, 0)
        return found

    def row(self, tensor: LazyTensor, index: int, size: int = 1) -> LazyTensor:
        """Returns the `size` rows of a tensor from `index` on, along dimension 0."""
        shape = (size, *tensor.shape[1:])
        if tensor.rest is not None and size == 1:
            own = tensor.rows[index]
            return own if own is not None else self.row(tensor.rest, index)
        if tensor.aligned[:1] == (1,) and tensor.rest is None:
            return LazyTensor(shape, tensor.element, tensor.value, tensor.array)
        if tensor.array is not None:
            return LazyTensor.known(
                tensor.array[index : index + size], shape, tensor.element
            )
        value = self.base(tensor)
        own = LazyTensor.of(value).shape
        starts = [index, *[0] * (len(own) - 1)]
        found = self.slice(value, starts, [index + size, *own[1:]])
        return LazyTensor.of(found, shape)
