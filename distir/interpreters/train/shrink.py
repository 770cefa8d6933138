"""The gradient of shrinkage on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.shrink import ShrinkGradOp
from distir.interpreters.train.arithmetic import Array, computes


@computes(ShrinkGradOp)
def shrink_gradient(op: ShrinkGradOp, dy: Array, x: Array) -> Array:
    return np.where(np.abs(x) > op.lambd.value.data, dy, dy.dtype.type(0))
