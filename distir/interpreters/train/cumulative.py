"""The gradient of running products, on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.cumulative import CumProdGradOp
from distir.interpreters.train.arithmetic import Array, computes


@computes(CumProdGradOp)
def running_product_gradient(op: CumProdGradOp, dy: Array, x: Array) -> Array:
    """
    Returns the gradient dx of a running product of `x`: dx_i = x_0 ... x_(i-1) s_i,
    where s_i = dy_i + x_(i+1) s_(i+1). The sums s_i are computed from the last to the
    first.
    """
    dy, x = (np.moveaxis(a, op.dimension, 0) for a in (dy, x))
    if op.reverse is not None:
        dy, x = dy[::-1], x[::-1]
    if op.exclusive is not None:
        dy = np.concatenate([dy[1:], np.zeros_like(dy[:1])])
    sums = np.array(dy)
    for i in range(len(x) - 2, -1, -1):
        sums[i] = dy[i] + x[i + 1] * sums[i + 1]
    before = np.concatenate([np.ones_like(x[:1]), np.cumprod(x[:-1], 0)])
    dx = before * sums
    return np.moveaxis(dx[::-1] if op.reverse is not None else dx, 0, op.dimension)
