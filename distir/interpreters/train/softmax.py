"""The gradients of softmax and its logarithm on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.train_ops.softmax import LogSoftmaxGradOp, SoftmaxGradOp
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.simulator.costs.op_costs import op_class
from distir.interpreters.train.arithmetic import Array, widen


@register_reference_implementations
@register_impls
class SoftmaxGradients(InterpreterFunctions):
    """`train.softmax_grad` and `train.log_softmax_grad`."""

    @impl(SoftmaxGradOp)
    def softmax(
        self, interpreter: Interpreter, op: SoftmaxGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, y = map(widen, args)
        total = (dy * y).sum(op.dimension, keepdims=True)
        return ((y * (dy - total)).astype(args[1].dtype),)

    @impl(LogSoftmaxGradOp)
    def log_softmax(
        self, interpreter: Interpreter, op: LogSoftmaxGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, y = map(widen, args)
        total = dy.sum(op.dimension, keepdims=True)
        return ((dy - np.exp(y) * total).astype(args[1].dtype),)


op_class("normalization", "train.softmax_grad", "train.log_softmax_grad")
