"""
Matrix products in 8-bit floats: by the tensor cores of devices that have them, elsewhere the
same numbers multiplied in f32.
"""

import torch

_LEAST = 1e-12


def float8_scale(x, largest, dim):
    """
    Returns the factor that fills the range of a format whose largest value is given: one
    for all of `x`, or one for each row along a dimension.
    """
    x = x.abs()
    magnitude = x.amax() if dim is None else x.amax(dim, keepdim=True)
    return largest / magnitude.to(torch.float32).clamp(min=_LEAST)


def to_float8(x, scale, dtype):
    """Returns `x` times its scale, rounded; numbers too large become the largest value."""
    limit = torch.finfo(dtype).max
    return (x.to(torch.float32) * scale).clamp_(-limit, limit).to(dtype)


def float8_product(a, b, scale_a, scale_b, dtype):
    """Returns `a b` without their scales, in that type; sums are kept in f32."""
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
    """Returns `a b` by way of these formats, with scales of tensors or of rows."""
    factors, scales = [], []
    for x, dtype, dim in ((a, a_dtype, -1), (b, b_dtype, 0)):
        limit = torch.finfo(dtype).max
        scales.append(float8_scale(x, limit, None if is_whole else dim))
        factors.append(to_float8(x, scales[-1], dtype))
    return float8_product(*factors, *scales, a.dtype)


def _has_cores(a, b):
    """Whether the device multiplies such factors: sizes in steps of 16, not both e5m2."""
    if not a.is_cuda or torch.version.hip is not None:
        return False
    if torch.cuda.get_device_capability(a.device) < (8, 9):
        return False
    fits = not (a.shape[-1] % 16 or b.shape[1] % 16)
    return fits and not a.dtype == b.dtype == torch.float8_e5m2
