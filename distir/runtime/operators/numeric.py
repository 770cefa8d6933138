"""
Arithmetic that PyTorch lacks: on unsigned integers, to narrow types, and cumulative
sums and products.
"""

import torch


def as_int64(x):
    """Returns `x` as int64. Raises ValueError for unsigned values of 2**63 or more."""
    if x.dtype == torch.uint64:
        x = x.view(torch.int64)
        if bool((x < 0).any()):
            raise ValueError("unsigned values of 2**63 and more are not supported")
        return x
    return x.to(torch.int64)


def to_unsigned(x, dtype):
    """
    Returns floats as unsigned integers of type `dtype`. Types of 16 and 32 bits are
    converted by way of int64.
    """
    if dtype == torch.uint8 or dtype == torch.uint64:
        return x.to(dtype)
    return x.to(torch.int64).to(dtype)


def to_narrow(x, least, largest, dtype):
    """
    Returns `x` as integers of less than a byte, from `least` to `largest`, each in an
    element of type `dtype`. Values out of range wrap around.
    """
    return ((x.to(torch.int64) - least) % (largest - least + 1) + least).to(dtype)


def to_float4(x):
    """
    Rounds `x` to the nearest 4-bit floats (E2M1), and returns these as float32. Ties go
    to the even value.
    """
    x = x.to(torch.float32)
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return ((size / step).round() * step).clamp(max=6.0).copysign(x)


def bit_shift(x, amount, left):
    """
    Returns the integers `x`, shifted by `amount` bits to the left if `left`, else to
    the right. If the amount is negative or at least the number of bits, the result is
    0, or -1 for a right shift of a negative integer.
    """
    bits = x.dtype.itemsize * 8
    unsigned = x.dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
    wide, by = x.to(torch.int64), amount.to(torch.int64)
    outside = (by < 0) | (by >= bits)
    inside = torch.where(outside, 0, by)
    if left:
        shifted = torch.where(outside, 0, wide << inside)
    elif unsigned and bits == 64:  # an arithmetic shift, its sign bits masked away
        mask = torch.where(inside == 0, -1, (1 << ((64 - inside) % 64)) - 1)
        shifted = torch.where(outside, 0, (wide >> inside) & mask)
    else:
        shifted = wide >> torch.where(outside, 63, inside)
    return shifted.to(x.dtype)


def to_float8(x, dtype, saturate=True, round_mode="up"):
    """
    Returns `x` in the 8-bit float type `dtype`. Values that are too large become the
    largest finite value if `saturate`, else infinity or NaN, depending on the type.
    """
    if x.dtype == dtype:
        return x
    x = x.to(torch.float32)
    if dtype == torch.float8_e8m0fnu:
        return _to_exponent(x, saturate, round_mode)
    limit = torch.finfo(dtype).max
    out = x.clamp(-limit, limit).to(dtype)
    if dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        special = torch.full_like(x, torch.nan)
    elif dtype == torch.float8_e5m2:
        special = torch.full_like(x, torch.inf).copysign(x)
    else:
        special = torch.full_like(x, torch.nan).copysign(x)
    if saturate:
        lost = torch.zeros_like(x, dtype=torch.bool)
    else:
        # The least magnitude that rounds beyond the largest finite value.
        digits = {torch.float8_e4m3fn: 3, torch.float8_e4m3fnuz: 3}.get(dtype, 2)
        exponent = torch.frexp(torch.tensor(limit, device="cpu")).exponent.item() - 1
        half = 2.0 ** (exponent - digits - 1)
        lost = (x.abs() > limit + half) | torch.isinf(x)
        even_up = dtype != torch.float8_e4m3fn
        if even_up:
            lost |= x.abs() == limit + half
    lost &= ~torch.isnan(x)
    bits = torch.where(lost, special.to(dtype).view(torch.uint8), out.view(torch.uint8))
    return bits.view(dtype)


def _to_exponent(x, saturate, round_mode):
    """
    Returns powers of two near the magnitudes of `x`, stored as their biased exponents
    (E8M0).
    """
    magnitude = x.abs().to(torch.float64)
    mantissa, exponent = torch.frexp(magnitude)  # magnitude = mantissa * 2**exponent
    whole = exponent.to(torch.int64) - 1
    if round_mode == "up":
        whole = whole + (mantissa > 0.5)
    elif round_mode == "nearest":
        whole = whole + (mantissa >= 0.75)
    biased = whole + 127
    biased = torch.where(magnitude == 0, 0, biased)
    high = 254 if saturate else 255
    biased = biased.clamp(0, high)
    infinite = torch.isinf(x)
    biased = torch.where(infinite, 254 if saturate else 255, biased)
    biased = torch.where(torch.isnan(x), 255, biased)
    return biased.to(torch.uint8).view(torch.float8_e8m0fnu)


def cumulative(function, x, axis, exclusive, reverse):
    """
    Returns the cumulative sum or product along `axis`. With `reverse`, the sum or
    product starts at the end; with `exclusive`, each result leaves out the element at
    its own position.
    """
    if reverse:
        x = x.flip(axis)
    out = function(x, axis, dtype=x.dtype)
    if exclusive and x.shape[axis]:
        first = torch.zeros_like if function is torch.cumsum else torch.ones_like
        out = torch.cat(
            [first(x.narrow(axis, 0, 1)), out.narrow(axis, 0, x.shape[axis] - 1)], axis
        )
    return out.flip(axis) if reverse else out
