"""The gradients of activation functions on arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.train_ops.activation import GeluGradOp, SwishGradOp
from distir.interpreters.kernels import erf
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.train.arithmetic import Array, widen


@register_reference_implementations
@register_impls
class ActivationGradients(InterpreterFunctions):
    """`train.gelu_grad` and `train.swish_grad`."""

    @impl(GeluGradOp)
    def gelu(
        self, interpreter: Interpreter, op: GeluGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, x = map(widen, args)
        if op.approximate.data == "tanh":
            root = math.sqrt(2 / math.pi)
            tanh = np.tanh(root * (x + 0.044715 * x * x * x))
            inner = root * (1 + 3 * 0.044715 * x * x)
            slope = (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * inner
        else:
            density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
            slope = (1 + erf(x / math.sqrt(2))) / 2 + x * density
        return ((dy * slope).astype(args[1].dtype),)

    @impl(SwishGradOp)
    def swish(
        self, interpreter: Interpreter, op: SwishGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, x = map(widen, args)
        alpha = x.dtype.type(op.alpha.value.data)
        # The hyperbolic tangent does not overflow, an exponential would.
        sigmoid = (1 + np.tanh(alpha * x / 2)) / 2
        dx = dy * sigmoid * (1 + alpha * x * (1 - sigmoid))
        return (dx.astype(args[1].dtype),)
