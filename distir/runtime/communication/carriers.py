"""
The types in which tensors are sent to be reduced by processes.

Backends cannot add or compare every type (gloo and NCCL have no 16-bit integers, and no
unsigned ones but bytes), and their maximum may drop a NaN, which torch's keeps. So a tensor
is converted to a carrier, whose reduction, converted back, is that of the tensor.
"""

import torch
from torch.distributed import ReduceOp

_OPS = {"sum": ReduceOp.SUM, "max": ReduceOp.MAX, "min": ReduceOp.MIN}
_WIDER = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
_ADDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def carried(x, reduction):
    """
    Returns the carrier of `x` (often `x` itself), the operation that reduces carriers, and
    the function that converts the result to the type of `x`.
    """
    op = _OPS[reduction]
    if x.dtype == torch.bool:  # a sum of truths is true if one is
        op = ReduceOp.MIN if reduction == "min" else ReduceOp.MAX
        return x.to(torch.uint8), op, lambda y: y != 0
    if x.dtype == torch.uint64:
        carrier, restore = _signed(x, ordered=reduction != "sum")
    elif x.is_floating_point() and reduction != "sum":
        carrier, restore = _integers(x, largest_nan=reduction == "max")
    elif x.is_floating_point() and x.dtype not in _ADDED:
        carrier, restore = x.to(torch.float32), lambda y: y.to(x.dtype)
    elif x.dtype in _WIDER:
        carrier, restore = x.to(_WIDER[x.dtype]), lambda y: y.to(x.dtype)
    else:
        carrier, restore = x, lambda y: y
    return carrier, op, restore


def _signed(x, ordered):
    """Returns 64-bit integers with a sign: with the same bits, or in the same order."""
    flipped = torch.iinfo(torch.int64).min if ordered else 0
    carrier = x.contiguous().view(torch.int64) ^ flipped
    return carrier, lambda y: (y ^ flipped).view(torch.uint64)


def _integers(x, largest_nan):
    """
    Returns integers in the order of floating-point numbers. A NaN is beyond all of them:
    above for a maximum, below for a minimum.
    """
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    kind = torch.int64 if x.dtype == torch.float64 else torch.int32
    least, largest = torch.iinfo(kind).min, torch.iinfo(kind).max

    def swapped(bits):
        # Bits of negative numbers, but for the sign, grow with their magnitude.
        return torch.where(bits < 0, bits ^ largest, bits)

    order = swapped(wide.contiguous().view(kind))
    order = torch.where(wide.isnan(), largest if largest_nan else least, order)
    return order, lambda y: swapped(y).view(wide.dtype).to(x.dtype)
