"""Arithmetic of the reference implementations: half precision is computed in f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def widen(x: Array) -> Array:
    """The array in f32, or in f64 if it is."""
    return x if x.dtype == np.float64 else x.astype(np.float32)
