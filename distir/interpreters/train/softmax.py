"""The gradients of softmax and its logarithm on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.softmax import LogSoftmaxGradOp, SoftmaxGradOp
from distir.interpreters.train.arithmetic import Array, computes


@computes(SoftmaxGradOp)
def softmax_gradient(op: SoftmaxGradOp, dy: Array, y: Array) -> Array:
    return y * (dy - (dy * y).sum(op.dimension, keepdims=True))


@computes(LogSoftmaxGradOp)
def log_softmax_gradient(op: LogSoftmaxGradOp, dy: Array, y: Array) -> Array:
    return dy - np.exp(y) * dy.sum(op.dimension, keepdims=True)
