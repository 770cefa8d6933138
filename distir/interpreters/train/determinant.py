"""Logarithms of determinants and their gradients, on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.determinant import SlogdetGradOp, SlogdetOp
from distir.interpreters.train.arithmetic import Array, computes


@computes(SlogdetOp)
def logarithm(op: SlogdetOp, x: Array) -> tuple[Array, Array]:
    sign, found = np.linalg.slogdet(x)
    return np.asarray(sign), np.asarray(found)


@computes(SlogdetGradOp)
def logarithm_gradient(op: SlogdetGradOp, dlogarithm: Array, x: Array) -> Array:
    """
    Returns the gradient of `x`: the transposed inverse of `x`, times `dlogarithm`. A
    singular matrix has no inverse, so its gradient is NaN.
    """
    inverse = np.full_like(x, np.nan)
    for index in np.ndindex(*x.shape[:-2]):
        if np.linalg.slogdet(x[index])[0]:
            inverse[index] = np.linalg.inv(x[index])
    return dlogarithm[..., None, None] * np.swapaxes(inverse, -1, -2)
