"""The gradients of activation functions on arrays."""

from __future__ import annotations

import math

import numpy as np

from distir.dialects.train_ops.activation import GeluGradOp, ReluGradOp, SwishGradOp
from distir.interpreters.kernels import erf
from distir.interpreters.train.arithmetic import Array, computes


@computes(GeluGradOp)
def gelu_gradient(op: GeluGradOp, dy: Array, x: Array) -> Array:
    if op.approximate.data == "tanh":
        root = math.sqrt(2 / math.pi)
        tanh = np.tanh(root * (x + 0.044715 * x * x * x))
        inner = root * (1 + 3 * 0.044715 * x * x)
        slope = (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * inner
    else:
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        slope = (1 + erf(x / math.sqrt(2))) / 2 + x * density
    return dy * slope


@computes(ReluGradOp)
def relu_gradient(op: ReluGradOp, dy: Array, x: Array) -> Array:
    return np.where(x > 0, dy, dy.dtype.type(0))


@computes(SwishGradOp)
def swish_gradient(op: SwishGradOp, dy: Array, x: Array) -> Array:
    alpha = x.dtype.type(op.alpha.value.data)
    # The hyperbolic tangent does not overflow, an exponential would.
    sigmoid = (1 + np.tanh(alpha * x / 2)) / 2
    return dy * sigmoid * (1 + alpha * x * (1 - sigmoid))
