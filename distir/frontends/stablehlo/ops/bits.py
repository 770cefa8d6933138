"""
Conversions of shifts, and of integers whose bits are read as floats. `jax.random` makes
random numbers with these ops.
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import IntegerType, Signedness, f32, i1
from xdsl.ir import OpResult, SSAValue

from distir.dialects.constants import constant_of
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.frontends.stablehlo.ops.elementwise import combined, folded
from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor

MANTISSA = 23
"""The bits of the mantissa of a float in 32 bits."""

ONE = 0x3F800000
"""The bits of 1.0 in 32 bits."""


@converts(
    "stablehlo.shift_left",
    "stablehlo.shift_right_logical",
    "stablehlo.shift_right_arithmetic",
)
def _shift(call: HloCall) -> LazyTensor:
    name, element = call.converter.name_of(call.op), call.element()
    assert isinstance(element, IntegerType)
    width, left = element.width.data, name.endswith("left")
    amount = call.operands[1].array
    if element.signedness.data != Signedness.UNSIGNED:
        if name.endswith("logical") and amount is not None and (amount == 0).all():
            return call.operands[0]
        if name.endswith("logical"):
            unsigned = np.dtype(f"uint{width}")

            def logical(x: np.ndarray, n: np.ndarray) -> np.ndarray:
                return np.where(
                    n < width, x.view(unsigned) >> n.view(unsigned), 0
                ).astype(x.dtype)

            found = folded(call, logical)
            if found is not None:
                return found
        raise UnsupportedError("it shifts signed integers; shift unsigned ones")
    found = folded(call, np.left_shift if left else np.right_shift)
    if found is not None:
        return found
    direction = "LEFT" if left else "RIGHT"
    shifted = combined(call, "BitShift", call.operands, element, direction=direction)
    if amount is not None and (amount < width).all():
        return shifted
    # A shift by all bits or more gives 0, which ONNX leaves open.
    limit = LazyTensor.known(np.array(width), (), element)
    is_less = combined(call, "Less", [call.operands[1], limit], i1)
    zero = LazyTensor.known(np.array(0), (), element)
    return combined(call, "Where", [is_less, shifted, zero], element)


@converts("stablehlo.bitcast_convert")
def _bitcast(call: HloCall) -> LazyTensor:
    """
    Converts an op that reads the bits of a tensor as a different type. Supports known
    tensors, and floats in [1, 2) that `jax.random` makes from a random mantissa: 1 +
    mantissa / 2^23, which is exact. Raises UnsupportedError for any other tensor.
    """
    [x], element = call.operands, call.element()
    if x.element == element:
        return x
    if x.array is not None and x.shape == call.shape():
        return LazyTensor.known(x.array.view(numpy_dtype(element)), x.shape, element)
    mantissa = None if x.value is None else _mantissa(x.value)
    if element != f32 or mantissa is None or x.shape != call.shape():
        raise UnsupportedError("it reads the bits of a number as another type")
    number = LazyTensor.of(call.build.cast(mantissa, element), x.shape)
    step = LazyTensor.known(np.array(2.0**-MANTISSA), (), element)
    one = LazyTensor.known(np.array(1.0), (), element)
    return combined(
        call, "Add", [combined(call, "Mul", [number, step], element), one], element
    )


def _mantissa(value: SSAValue) -> SSAValue | None:
    """Returns m if `value` is `m | bits of 1.0` for an integer m < 2^23, else None."""
    if not isinstance(value, OpResult) or value.op.name != "onnx.BitwiseOr":
        return None
    for number, other in (value.op.operands, reversed(value.op.operands)):
        known = constant_of(other)
        if known is not None and (known == ONE).all() and _is_short(number):
            return number
    return None


def _is_short(value: SSAValue) -> bool:
    """Whether `value` is the result of a right shift that leaves at most 23 bits."""
    if not isinstance(value, OpResult) or value.op.name != "onnx.BitShift":
        return False
    amount = constant_of(value.op.operands[1])
    return (
        str(value.op.attributes.get("direction", value.op.properties.get("direction")))
        == '"RIGHT"'
        and amount is not None
        and bool((amount >= 32 - MANTISSA).all())
    )
