"""
Support for `math` on tensors and scalars: sharding rules, and evaluation on arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import math

from distir.foreign.elementwise import register_meaning, register_rules
from distir.interpreters.kernels import erf

Array = npt.NDArray[Any]

register_rules(
    "math", {op.name.removeprefix("math."): "" for op in math.Math.operations}
)


def _multiplied_and_added(x: Array, y: Array, z: Array) -> Array:
    return x * y + z


def _rounded(x: Array) -> Array:
    """Rounds to the nearest integer. Halves are rounded away from zero."""
    return np.where(np.isfinite(x), np.trunc(x) + np.trunc(2 * (x - np.trunc(x))), x)


def _reciprocal_root(x: Array) -> Array:
    return 1 / np.sqrt(x)


register_meaning(
    {
        math.AbsFOp: np.abs,
        math.AbsIOp: np.abs,
        math.AcosOp: np.arccos,
        math.AcoshOp: np.arccosh,
        math.AsinOp: np.arcsin,
        math.AsinhOp: np.arcsinh,
        math.Atan2Op: np.arctan2,
        math.AtanOp: np.arctan,
        math.AtanhOp: np.arctanh,
        math.CbrtOp: np.cbrt,
        math.CeilOp: np.ceil,
        math.CopySignOp: np.copysign,
        math.CosOp: np.cos,
        math.CoshOp: np.cosh,
        math.ErfOp: erf,
        math.Exp2Op: np.exp2,
        math.ExpM1Op: np.expm1,
        math.ExpOp: np.exp,
        math.FloorOp: np.floor,
        math.FmaOp: _multiplied_and_added,
        math.FPowIOp: np.power,
        math.Log10Op: np.log10,
        math.Log1pOp: np.log1p,
        math.Log2Op: np.log2,
        math.LogOp: np.log,
        math.PowFOp: np.power,
        math.RoundEvenOp: np.rint,
        math.RoundOp: _rounded,
        math.RsqrtOp: _reciprocal_root,
        math.SinOp: np.sin,
        math.SinhOp: np.sinh,
        math.SqrtOp: np.sqrt,
        math.TanOp: np.tan,
        math.TanhOp: np.tanh,
        math.TruncOp: np.trunc,
    }
)
