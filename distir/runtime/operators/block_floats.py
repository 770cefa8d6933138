"""
Matrix products of narrow floats with a scale for each block of elements (MXFP8, NVFP4).
Devices without tensor cores for such blocks multiply the same numbers in float32. Floats
of 4 bits are held in elements of float32.
"""

import torch

from .float8 import float8_scale
from .numeric import to_float4, to_float8

_LARGEST = {"float8e4m3fn": 448.0, "float4e2m1": 6.0}
_EXPONENT = "float8e8m0"


def quantize_blocks(x, *tensor_scale, dim, square, size, element, scale):
    """
    Returns `x` as narrow floats of type `element`, and the scales, of type `scale`, of
    its blocks of `size` elements along dimension `dim`. If `square`, blocks are squares
    of the matrix `x`. `tensor_scale` is the scale of all of `x`, for recipes with one.
    """
    divided = range(x.ndim) if square else (dim,)
    shape, within = [], []
    for i, n in enumerate(x.shape):
        if i in divided:
            within.append(len(shape) + 1)
            shape += [n // size, size]
        else:
            shape.append(n)
    blocks = x.reshape(shape)
    magnitude = blocks.abs().amax(within, keepdim=True).to(torch.float32)
    magnitude = torch.where(magnitude.isfinite(), magnitude, torch.nan)
    needed = magnitude / _LARGEST[element]
    if scale == _EXPONENT:
        scales = to_float8(needed, torch.float8_e8m0fnu)
        factor = scales.to(torch.float32).reciprocal()
    else:
        scales = to_float8(needed * tensor_scale[0], torch.float8_e4m3fn)
        wide = scales.to(torch.float32)
        # The elements of a block whose scale is too small for its type are lost.
        factor = torch.where(wide == 0, 0.0, tensor_scale[0] / wide)
    scaled = (blocks * factor).reshape(x.shape)
    scales = scales.reshape([n for i, n in enumerate(shape) if i not in within])
    if element == "float4e2m1":
        return to_float4(scaled), scales
    limit = _LARGEST[element]
    return scaled.clamp_(-limit, limit).to(torch.float8_e4m3fn), scales


def block_linear(a, b, *, square, size, element, scale):
    """
    Returns the product of `a` and `b`, after converting both to blocks along the
    dimension that is summed over. If `square`, the blocks of `b` are squares.
    """
    parts, scales, of_tensors = [], [], []
    for x, dim, is_square in ((a, a.ndim - 1, False), (b, 0, square)):
        if scale != _EXPONENT:
            largest = _LARGEST[element] * _LARGEST[scale]
            of_tensors.append(float8_scale(x, largest, None))
        part, found = quantize_blocks(
            *(x, *of_tensors[-1:]),
            dim=dim, square=is_square, size=size, element=element, scale=scale,
        )  # fmt: skip
        parts.append(part)
        scales.append(found)
    return block_product(*parts, *scales, *of_tensors, dtype=a.dtype)


def block_product(a, b, scale_a, scale_b, *tensor_scales, dtype):
    """
    Returns the product of `a` and `b`, which are narrow floats with scales for blocks
    along the dimension that is summed over, in type `dtype`. `tensor_scales` are the
    scales of all of `a` and of all of `b`, for recipes with such scales. Sums are
    accumulated in float32.
    """
    if has_cores(a, b, scale_a, scale_b):
        product = scaled_product(a, b, scale_a, scale_b)
    else:
        product = _wide(a, scale_a) @ _wide(b, scale_b)
    for one in tensor_scales:
        product = product * one.reciprocal()
    return product.to(dtype)


def _wide(x, scale):
    """Returns the numbers that blocks `x` with the scales `scale` stand for."""
    return x.to(torch.float32) * _spread(scale.to(torch.float32), x.shape)


def _spread(scale, shape):
    """Returns the scale of each element of a tensor with shape `shape`."""
    for dim, (count, n) in enumerate(zip(scale.shape, shape, strict=True)):
        if count != n:
            scale = scale.repeat_interleave(n // count, dim)
    return scale


def has_cores(a, b, scale_a, scale_b):
    """
    Whether the device has tensor cores for the product: NVIDIA GPUs of compute
    capability 10.0 or more have them for blocks of 8-bit floats. Sizes must be multiples
    of 32.
    """
    if not a.is_cuda or torch.version.hip is not None:
        return False
    if torch.cuda.get_device_capability(a.device) < (10, 0):
        return False
    is_float8 = a.dtype == torch.float8_e4m3fn and scale_a.dtype == torch.float8_e8m0fnu
    return is_float8 and not (a.shape[-1] % 32 or b.shape[1] % 32)


def scaled_product(a, b, scale_a, scale_b):
    """Returns the product of blocks of 8-bit floats, in bfloat16, on tensor cores."""
    rows = a.reshape(-1, a.shape[-1])
    found = torch._scaled_mm(
        *(rows.contiguous(), b.t().contiguous().t()),
        swizzled(scale_a.reshape(rows.shape[0], -1)),
        swizzled(scale_b.t()),
        out_dtype=torch.bfloat16,
    )
    return found.reshape(*a.shape[:-1], b.shape[1])


def swizzled(scale):
    """
    Returns the scales of a matrix, one row of scales for each of its rows, in the order
    in which tensor cores read them: tiles of 128 x 4 scales, of which scale (i, j) is at
    16 (i % 32) + 4 (i // 32) + j. Missing rows and columns of the last tiles are zeros.
    """
    rows, columns = scale.shape
    tiles, wide = -(-rows // 128), -(-columns // 4)
    padded = torch.zeros(128 * tiles, 4 * wide, dtype=torch.uint8, device=scale.device)
    padded[:rows, :columns] = scale.contiguous().view(torch.uint8)
    parts = padded.reshape(tiles, 4, 32, wide, 4).permute(0, 3, 2, 1, 4)
    return parts.reshape(-1).view(scale.dtype)
