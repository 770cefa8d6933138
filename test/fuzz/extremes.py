"""
Arrays of every element type with the values at which kernels differ: NaN, infinities, the
least and the largest numbers, denormals, both zeros, halves, among ordinary numbers.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(t) for t in ("float32", "float64", "float16")] + [BF16]
SIGNED = [np.dtype(t) for t in ("int64", "int32", "int16", "int8")]
UNSIGNED = [np.dtype(t) for t in ("uint8", "uint16", "uint32", "uint64")]
BOOL = np.dtype(bool)
DTYPES = [*FLOATS, *SIGNED, *UNSIGNED, BOOL]


def is_float(dtype: npt.DTypeLike) -> bool:
    """Whether elements are floats of 16 bits or more."""
    return np.dtype(dtype) in FLOATS


def specials(dtype: Any) -> Array:
    """The values of an element type that are special somewhere."""
    dtype = np.dtype(dtype)
    if dtype == BOOL:
        return np.array([False, True])
    if is_float(dtype):
        info = ml_dtypes.finfo(dtype)
        largest, least = float(info.max), float(info.tiny)
        denormal, step = float(info.smallest_subnormal), float(info.eps)
        numbers = [np.nan, np.inf, largest, least, denormal, step, 0.0, 0.5, 1.5, 2.5]
        numbers += [1.0, 3.0, 20.0, 90.0, 1e-4, largest / 2]
        return np.array([*numbers, *(-n for n in numbers)]).astype(dtype)
    limits = np.iinfo(dtype)
    numbers = [0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.max // 2]
    numbers += [limits.min, limits.min // 2, *([-1, -2, -7] if limits.min else [])]
    return np.array(numbers, dtype)


def ordinary(random: np.random.Generator, shape: Any, dtype: Any) -> Array:
    """Numbers from -3 to 3 (from 0 on if unsigned), of which sums and products are small."""
    dtype = np.dtype(dtype)
    if dtype == BOOL:
        return random.integers(0, 2, shape).astype(bool)
    if is_float(dtype):
        return random.uniform(-3, 3, shape).astype(dtype)
    return random.integers(0 if np.iinfo(dtype).min == 0 else -3, 4, shape).astype(
        dtype
    )


def extreme(random: np.random.Generator, shape: Any, dtype: Any, share: float) -> Array:
    """Ordinary numbers, of which this share is replaced by special values."""
    plain = ordinary(random, shape, dtype)
    chosen = random.choice(specials(dtype), shape)
    return np.where(random.random(shape) < share, chosen, plain).astype(dtype)


def summable(
    random: np.random.Generator, shape: Any, dtype: Any, share: float
) -> Array:
    """
    The same for what is added up: without the largest finite numbers, whose sums are
    infinite in one order and finite in another.
    """
    dtype = np.dtype(dtype)
    if not is_float(dtype):
        return extreme(random, shape, dtype, share)
    plain = ordinary(random, shape, dtype)
    values = specials(dtype)
    wide = values.astype(np.float64)
    chosen = random.choice(values[~np.isfinite(wide) | (np.abs(wide) <= 3)], shape)
    return np.where(random.random(shape) < share, chosen, plain).astype(dtype)


def finite(random: np.random.Generator, shape: Any, dtype: Any, share: float) -> Array:
    """The same without NaN and infinities."""
    found = summable(random, shape, dtype, share)
    if not is_float(dtype):
        return found
    return np.where(np.isfinite(found), found, 0).astype(dtype)


def numeric(random: np.random.Generator, shape: Any, dtype: Any, share: float) -> Array:
    """Extreme values without NaN."""
    found = extreme(random, shape, dtype, share)
    return (
        np.where(np.isnan(found), 0, found).astype(dtype) if is_float(dtype) else found
    )


def bounded(random: np.random.Generator, shape: Any, dtype: Any, share: float) -> Array:
    """Extreme values, the largest finite ones too, without NaN and infinities."""
    found = extreme(random, shape, dtype, share)
    return (
        np.where(np.isfinite(found), found, 0).astype(dtype)
        if is_float(dtype)
        else found
    )
