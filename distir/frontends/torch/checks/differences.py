"""How far results of a program are from those of its module."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_TOLERANCES = {8: 1e-4, 4: 1e-4, 2: 3e-2}
"""
How far results of that many bytes may be apart, relative to the largest number or 1: what
rounding in another order makes, with room for networks that amplify it.
"""


def difference(wanted: Array, found: Array) -> str | None:
    """Says how far apart two results are, if that is more than rounding."""
    if wanted.shape != found.shape:
        return f"has the shape {list(found.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind not in "fc":
        return None  # rounding may choose another index
    is_finite = np.isfinite(wanted)
    if not np.array_equal(is_finite, np.isfinite(found.astype(wanted.dtype))):
        return "is infinite, or no number, elsewhere"
    largest = float(np.abs(wanted[is_finite]).max(initial=0.0))
    apart = distance(wanted, found)
    if apart <= tolerance(wanted, found) * max(1.0, largest):
        return None
    return f"differs by {apart:.2g} (its largest number is {largest:.3g})"


def tolerance(one: Array, other: Array) -> float:
    """Returns by which part of the largest number two results may differ by rounding."""
    return _TOLERANCES.get(min(one.dtype.itemsize, other.dtype.itemsize), 1e-4)


def distance(one: Array, other: Array) -> float:
    """Returns the largest difference between the finite elements of two arrays."""
    if one.shape != other.shape:
        return float("inf")
    kind = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    first, second = one.astype(kind), other.astype(kind)
    finite = np.isfinite(first) & np.isfinite(second)
    return float(np.abs(first - second)[finite].max(initial=0.0))
