"""
The element types in which processes send tensors to be reduced.

Backends cannot add or compare every type: gloo and NCCL have no 16-bit integers, and no
unsigned integers other than bytes. The maximum of a backend may drop a NaN, while
PyTorch's maximum keeps it. Therefore a tensor is converted to a carrier: a tensor of
another type, whose reduction can be converted back to the reduction of the tensor.
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
    Returns the carrier that is sent for `x` (often `x` itself), the operation that
    reduces carriers, and the function that converts the reduced carrier to the type of
    `x`.
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
    """
    Returns signed integers that are sent for the 64-bit unsigned integers `x`, and the
    function that converts them back. The integers have the same order if `ordered`,
    else the same bits.
    """
    flipped = torch.iinfo(torch.int64).min if ordered else 0
    carrier = x.contiguous().view(torch.int64) ^ flipped
    return carrier, lambda y: (y ^ flipped).view(torch.uint64)


def _integers(x, largest_nan):
    """
    Returns integers in the same order as the floating-point numbers `x`, and the
    function that converts them back. A NaN becomes the largest integer if
    `largest_nan`, else the smallest.
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
