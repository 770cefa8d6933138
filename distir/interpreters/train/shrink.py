"""The gradient of shrinkage on arrays, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.train_ops.shrink import ShrinkGradOp
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.simulator.costs.op_costs import op_class
from distir.interpreters.train.arithmetic import Array


@register_reference_implementations
@register_impls
class ShrinkGradient(InterpreterFunctions):
    """`train.shrink_grad`."""

    @impl(ShrinkGradOp)
    def shrink(
        self, interpreter: Interpreter, op: ShrinkGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, x = args
        return (np.where(np.abs(x) > op.lambd.value.data, dy, dy.dtype.type(0)),)


op_class("elementwise", "train.shrink_grad")
