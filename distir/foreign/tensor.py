"""
Support for `tensor`: sharding rules and evaluation of ops that make tensors or change
shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects import tensor
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, TensorType
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Operation

from distir.foreign.elementwise import dtype_of
from distir.interpreters.implementations import register_reference_implementations
from distir.sharding.rule import Dim, Factor, Linear, Rule, sharding_rule
from distir.sharding.rules.elementwise import elementwise_rule

# A tensor of equal elements can be made in any layout.
sharding_rule("tensor.empty", "tensor.splat")(elementwise_rule())
sharding_rule("tensor.cast")(elementwise_rule("first"))


@sharding_rule("tensor.expand_shape", "tensor.collapse_shape")
def reassociation_rule(op: Operation) -> Rule:
    """
    Returns the sharding rule of ops that collapse groups of dimensions into one, or
    expand a dimension into a group. The dimensions of the longer shape are the factors.
    Dynamic shapes are replicated.
    """
    source, result = op.operands[0].type, op.results[0].type
    assert isinstance(source, TensorType) and isinstance(result, TensorType)
    shapes = [source.get_shape(), result.get_shape()]
    if any(d < 0 for shape in shapes for d in shape) or len(op.operands) > 1:
        return Rule.replicated(op)
    groups: Any = op.properties["reassociation"]
    joined: tuple[Dim, ...] = tuple(
        tuple(i.value.data for i in group.data if isinstance(i, IntegerAttr))
        for group in groups.data
        if isinstance(group, ArrayAttr)
    )
    long = max(shapes, key=len)
    own: tuple[Dim, ...] = tuple((i,) for i in range(len(long)))
    expands = len(result.get_shape()) > len(source.get_shape())
    before, after = (joined, own) if expands else (own, joined)
    return Rule(
        factors=tuple(map(Factor, long)),
        operands=(before,),
        results=(after,),
        linear=(Linear(frozenset({0}), frozenset({"sum", "max", "min"})),),
    )


@register_reference_implementations
@register_impls
class TensorFunctions(InterpreterFunctions):
    """The evaluation of `tensor` ops on arrays."""

    @impl(tensor.EmptyOp)
    def empty(
        self, interpreter: Interpreter, op: tensor.EmptyOp, args: PythonValues
    ) -> PythonValues:
        """Returns zeros, in place of undefined elements."""
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        return (np.zeros(type_.get_shape(), dtype_of(type_)),)

    @impl(tensor.SplatOp)
    def splat(
        self, interpreter: Interpreter, op: tensor.SplatOp, args: PythonValues
    ) -> PythonValues:
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        return (np.full(type_.get_shape(), args[0], dtype_of(type_)),)

    @impl(tensor.CastOp)
    def cast(
        self, interpreter: Interpreter, op: tensor.CastOp, args: PythonValues
    ) -> PythonValues:
        return (args[0],)

    @impl(tensor.ExpandShapeOp)
    def expand(
        self, interpreter: Interpreter, op: tensor.ExpandShapeOp, args: PythonValues
    ) -> PythonValues:
        return self._reshaped(op, args[0])

    @impl(tensor.CollapseShapeOp)
    def collapse(
        self, interpreter: Interpreter, op: tensor.CollapseShapeOp, args: PythonValues
    ) -> PythonValues:
        return self._reshaped(op, args[0])

    def _reshaped(self, op: Operation, value: Any) -> PythonValues:
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        return (np.reshape(value, type_.get_shape()),)
