"""Gradients of look-ups on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.train_ops.checks import shape_of
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
    op_class,
)
from distir.interpreters.train.arithmetic import Array, widen


@register_reference_implementations
@register_impls
class LookupGradients(InterpreterFunctions):
    """`train.gather_grad`."""

    @impl(GatherGradOp)
    def gather(
        self, interpreter: Interpreter, op: GatherGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, indices = args[:2]
        wide, axis = widen(dy), op.dimension
        depth = indices.ndim
        slices = np.moveaxis(wide, range(axis, axis + depth), range(depth))
        out = np.zeros(shape_of(op.ddata), wide.dtype)
        np.add.at(np.moveaxis(out, axis, 0), indices, slices)
        return (out.astype(dy.dtype),)


@cost_function("train.gather_grad")
def lookup_gradient(context: CostContext) -> Cost:
    """Fills its result with zeros, then reads and writes the elements looked up."""
    gradient, indices = context.operand_bytes[:2]
    return context.roofline(moved=3 * gradient + indices + sum(context.result_bytes))


op_class("gather", "train.gather_grad")
