"""
Helpers for writing local forms: they add constants, ONNX ops and this device's
position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import IntegerAttr, TensorType, i64
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import constant_attr, element_type_of_dtype
from distir.dialects.tensors import shape_of
from distir.sharding.local import LocalContext


class LocalBuilder:
    """
    Collects the ops of a local form in order. Each op gets the module path (scope) of
    the distributed op.
    """

    def __init__(self, context: LocalContext):
        self.context = context
        self.ops: list[Operation] = []

    @property
    def op(self) -> OnnxOp:
        """The distributed op, which must be an ONNX op."""
        assert isinstance(self.context.op, OnnxOp)
        return self.context.op

    def input(self, position: int) -> SSAValue | None:
        """
        Returns the local operand at schema position `position`, or None if the operand
        is omitted.
        """
        return self.inputs[position] if position < len(self.inputs) else None

    @property
    def inputs(self) -> list[SSAValue | None]:
        """
        The local operands by schema position. The entry of an omitted operand is None.
        """
        operands = iter(self.context.operands)
        return [None if v is None else next(operands) for v in self.op.input_values]

    def constant(self, array: npt.ArrayLike) -> SSAValue:
        """Adds an `onnx.Constant` with the value `array`, and returns its result."""
        array = np.asarray(array)
        type_ = TensorType(element_type_of_dtype(array.dtype), array.shape)
        return self.emit("Constant", [], type_, {"value": constant_attr(array)})

    def shape_constant(self, sizes: Sequence[int]) -> SSAValue:
        """
        Adds an `onnx.Constant` with `sizes` as 64-bit integers, and returns its result.
        """
        return self.constant(np.array(sizes, dtype=np.int64))

    def emit(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        result_type: Attribute,
        attributes: Mapping[str, Any] | None = None,
    ) -> SSAValue:
        """Adds the ONNX op `name` with one result, and returns the result."""
        op = operator(name).build_op(inputs, [result_type], attributes, self._scope())
        self.ops.append(op)
        return op.results[0]

    def coordinate(self, axes: Sequence[str]) -> SSAValue:
        """
        Adds an op that computes this device's position along `axes`, with the first
        axis major. Returns it as an i64.
        """
        op = self.context.coordinate(axes)
        self.ops.append(op)
        return op.results[0]

    def finish(
        self,
        inputs: Sequence[SSAValue | None] | None = None,
        attributes: Mapping[str, int] | None = None,
        drop: Sequence[str] = (),
    ) -> Sequence[Operation]:
        """
        Returns the collected ops, followed by the op itself on `inputs` (by schema
        position; by default the local operands). `attributes` replaces integer
        attributes, and `drop` removes attributes.
        """
        op = type(self.op).build_op(
            self.inputs if inputs is None else inputs,
            self.context.result_types,
            None,
            dict(self.op.attributes),
        )
        for name, attr in self.op.properties.items():
            if name in self.op.SCHEMA.attributes and name not in drop:
                op.properties[name] = attr
        for name, value in (attributes or {}).items():
            op.properties[name] = IntegerAttr(value, i64)
        return [*self.ops, op]

    def result_shape(self, index: int = 0) -> tuple[int, ...]:
        """Returns the local shape of the result `index`."""
        return shape_of(self.context.result_types[index])

    def _scope(self) -> dict[str, Attribute]:
        scope = self.context.op.attributes.get(SCOPE)
        return {} if scope is None else {SCOPE: scope}


def is_split(context: LocalContext) -> bool:
    """Whether any factor of the op is split."""
    return any(context.assignment.values())
