"""Optimizer states of 8 bits per element, with a scale for each block of elements."""

from functools import cache

import torch


@cache
def _numbers(is_signed, device):
    """Returns the 256 numbers that codes stand for, in ascending order."""
    found = [0.0 if is_signed else 1e-7, 1.0]
    for exponent in range(7):
        count = 2 ** (6 - exponent) * (1 if is_signed else 2)
        width = 0.9 / count
        for i in range(count):
            value = (0.1 + width * (i + 0.5)) * 10.0**-exponent
            found += [value, -value] if is_signed else [value]
    return torch.tensor(sorted(found), dtype=torch.float32, device=device)


def quantize(state, block, is_signed):
    """
    Returns the code of the nearest number for each element, and the largest absolute
    value of each block of the last dimension.
    """
    numbers = _numbers(is_signed, state.device)
    blocks = state.to(torch.float32).unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1)
    relative = blocks / scales.where(scales > 0, 1).unsqueeze(-1)
    middles = (numbers[1:] + numbers[:-1]) * 0.5
    codes = torch.bucketize(relative, middles, out_int32=True).to(torch.uint8)
    return codes.flatten(-2), scales


def dequantize(codes, scales, block, is_signed, dtype):
    """
    Returns a state from its codes: the number of each code times the scale of its
    block.
    """
    numbers = _numbers(is_signed, codes.device)
    blocks = numbers[codes.int().unflatten(-1, (-1, block))]
    return (blocks * scales.unsqueeze(-1)).flatten(-2).to(dtype)
