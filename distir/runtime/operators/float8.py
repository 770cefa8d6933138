"""
Matrix products in 8-bit floats. Devices without tensor cores for 8-bit floats multiply
the same numbers in float32.
"""

import torch

_LEAST = 1e-12


def float8_scale(x, largest, dim):
    """
    Returns the scales by which `x` fills the range of a format with largest value
    `largest`: one scale for each row along dimension `dim`, or one for all of `x` if
    `dim` is None.
    """
    x = x.abs()
    magnitude = x.amax() if dim is None else x.amax(dim, keepdim=True)
    return largest / magnitude.to(torch.float32).clamp(min=_LEAST)


def to_float8(x, scale, dtype):
    """
    Returns `x * scale`, rounded to the 8-bit type `dtype`. Values that are too large
    become the largest finite value.
    """
    limit = torch.finfo(dtype).max
    return (x.to(torch.float32) * scale).clamp_(-limit, limit).to(dtype)


def float8_product(a, b, scale_a, scale_b, dtype):
    """
    Returns the product of `a` and `b`, divided by their scales, in type `dtype`. Sums
    are accumulated in float32.
    """
    inverse_a, inverse_b = scale_a.reciprocal(), scale_b.reciprocal()
    if not _has_cores(a, b):
        found = a.to(torch.float32) @ b.to(torch.float32)
        return found.mul_(inverse_a).mul_(inverse_b).to(dtype)
    rows = a.reshape(-1, a.shape[-1])
    if scale_a.ndim:
        inverse_a = inverse_a.reshape(-1, 1)
        inverse_b = inverse_b.contiguous()
    # The cores take rows of `a` and columns of `b`; with a scale for each row they give bf16.
    out = torch.bfloat16 if scale_a.ndim else dtype
    found = torch._scaled_mm(
        *(rows.contiguous(), b.t().contiguous().t()),
        *(inverse_a, inverse_b),
        out_dtype=out,
        use_fast_accum=False,
    )
    return found.to(dtype).reshape(*a.shape[:-1], b.shape[1])


def float8_linear(a, b, a_dtype, b_dtype, is_whole):
    """
    Returns the product of `a` and `b`, after rounding both to 8-bit types. There is one
    scale for each tensor if `is_whole`, else one for each row of `a` and column of `b`.
    """
    factors, scales = [], []
    for x, dtype, dim in ((a, a_dtype, -1), (b, b_dtype, 0)):
        limit = torch.finfo(dtype).max
        scales.append(float8_scale(x, limit, None if is_whole else dim))
        factors.append(to_float8(x, scales[-1], dtype))
    return float8_product(*factors, *scales, a.dtype)


def _has_cores(a, b):
    """
    Whether the device has tensor cores for the product: on NVIDIA GPUs of compute
    capability 8.9 or more, if sizes are multiples of 16 and not both types are e5m2.
    """
    if not a.is_cuda or torch.version.hip is not None:
        return False
    if torch.cuda.get_device_capability(a.device) < (8, 9):
        return False
    fits = not (a.shape[-1] % 16 or b.shape[1] % 16)
    return fits and not a.dtype == b.dtype == torch.float8_e5m2
