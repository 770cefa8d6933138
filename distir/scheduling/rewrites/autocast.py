"""Casts ops to 16 bits as PyTorch's autocast does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    TensorType,
    f32,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.constants import direct_constant
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import OnnxOp, operator
from distir.dialects.onnx_ops.traits import FOLLOWS_PRECISION, LOW_PRECISION
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.program import argument_roles, made_with


class Autocast:
    """
    Makes ops of one function compute in the 16-bit element type `element`. `_low` maps
    f32 values to their 16-bit casts; `count` is the number of ops that compute in 16
    bits so far.
    """

    def __init__(self, function: FuncOp, element: BFloat16Type | Float16Type):
        self._element = element
        self._low: dict[SSAValue, SSAValue] = {}
        roles = argument_roles(function)
        self._parameters = {
            arg
            for arg, role in zip(function.args, roles, strict=True)
            if role == "parameter"
        }
        self._casts: list[Operation] = []
        self.count = 0

    def cast(self, ops: Sequence[Operation]) -> None:
        """
        Makes ops compute in 16 bits. `ops` are in the order of the program. The changed
        ops are those that autocast runs in 16 bits, such as matrix products, and ops
        that only pass on the results of these ops. Norms, softmax, sums and losses stay
        in f32.
        """
        for op in ops:
            if isinstance(op, OnnxOp) and (
                op.name in LOW_PRECISION or self._follows(op)
            ):
                self._replace(op)
        for op in reversed(self._casts):
            if op.results[0].first_use is None:
                Rewriter.erase_op(op)

    def _follows(self, op: Operation) -> bool:
        if op.name not in FOLLOWS_PRECISION:
            return False
        values = [value for value in op.operands if _is_f32(value)]
        known = [value in self._low for value in values]
        return any(known) and all(
            k or self._is_cheap(value) for k, value in zip(known, values, strict=True)
        )

    def _is_cheap(self, value: SSAValue) -> bool:
        """
        Whether a value may be cast to 16 bits to suit the other operands of an op: a
        single number, or a parameter (a bias).
        """
        constant = direct_constant(value)
        if constant is not None:
            return np.size(constant) == 1
        return isinstance(value, BlockArgument) and value in self._parameters

    def _replace(self, op: OnnxOp) -> None:
        operands = [self._in_low(v, op) if _is_f32(v) else v for v in op.operands]
        types = [
            TensorType(self._element, r.type.get_shape())
            if _is_f32(r) and isinstance(r.type, TensorType)
            else r.type
            for r in op.results
        ]
        new = made_with(op, operands, types)
        Rewriter.insert_op(new, InsertPoint.before(op))
        for before, after in zip(op.results, new.results, strict=True):
            after.name_hint = before.name_hint
            wide = after
            if after.type != before.type:
                wide = self._cast(after, f32, InsertPoint.before(op), op)
                self._low[wide] = after
            before.replace_all_uses_with(wide)
        Rewriter.erase_op(op)
        self.count += 1

    def _in_low(self, value: SSAValue, user: Operation) -> SSAValue:
        if value not in self._low:
            place = InsertPoint.before(user)
            self._low[value] = self._cast(value, self._element, place, user)
        return self._low[value]

    def _cast(
        self, value: SSAValue, element: Attribute, place: InsertPoint, like: Operation
    ) -> SSAValue:
        assert isinstance(value.type, TensorType)
        type_ = TensorType(element, value.type.get_shape())
        attributes = {"to": onnx_element_type(element)}
        op = operator("Cast").build_op([value], [type_], attributes)
        if SCOPE in like.attributes:
            op.attributes[SCOPE] = like.attributes[SCOPE]
        Rewriter.insert_op(op, place)
        self._casts.append(op)
        return op.results[0]


def _is_f32(value: SSAValue) -> bool:
    type_ = value.type
    return isinstance(type_, TensorType) and isinstance(type_.element_type, Float32Type)
