"""
Conversions of elementwise ops and constants. Small results that depend only on
constants are computed during the conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IntegerType, bf16, f16, f32, f64, i1
from xdsl.ir import Attribute, SSAValue

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import Array, LazyTensor

FOLDED = 64
"""
The most elements of a result that is computed from constants during the conversion.
"""

OPERATORS: Mapping[str, str] = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "power": "Pow",
    "negate": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "exponential": "Exp",
    "log": "Log",
    "logistic": "Sigmoid",
    "tanh": "Tanh",
    "sqrt": "Sqrt",
    "sine": "Sin",
    "cosine": "Cos",
    "tan": "Tan",
    "floor": "Floor",
    "ceil": "Ceil",
    "round_nearest_even": "Round",
}
"""The ONNX operator equal to each op of StableHLO."""

CHLO: Mapping[str, str] = {
    "erf": "Erf",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
}

LOGICAL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
"""The ONNX operators for booleans, by the name of the StableHLO op."""

BITWISE = {
    "and": "BitwiseAnd",
    "or": "BitwiseOr",
    "xor": "BitwiseXor",
    "not": "BitwiseNot",
}
"""The ONNX operators for the bits of integers, by the name of the StableHLO op."""

COMPARISONS = {
    "LT": "Less",
    "LE": "LessOrEqual",
    "GT": "Greater",
    "GE": "GreaterOrEqual",
    "EQ": "Equal",
}

FOLDS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negate": np.negative,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "select": np.where,
    "sqrt": np.sqrt,
}
"""The NumPy function that computes an op of constants."""

COMPARED = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def combined(
    call: HloCall,
    name: str,
    operands: Sequence[LazyTensor],
    element: Attribute,
    **attrs: Any,
) -> LazyTensor:
    """
    Adds the elementwise ONNX op `name` on `operands`, and returns its result. The
    operands need not have the same shape, because the op broadcasts them.
    """
    values = [call.build.base(operand) for operand in operands]
    shape = np.broadcast_shapes(*[operand.base for operand in operands])
    return LazyTensor.of(
        call.build.op(name, values, shape, element, **attrs), call.shape()
    )


def folded(call: HloCall, compute: Callable[..., Any] | None) -> LazyTensor | None:
    """
    Returns the result that `compute` returns for the operands, if all operands are
    known and the result is small. Returns None otherwise, and if `compute` is None.
    """
    arrays = [operand.array for operand in call.operands]
    if compute is None or any(array is None for array in arrays):
        return None
    known: list[Array] = [array for array in arrays if array is not None]
    if np.prod(np.broadcast_shapes(*[a.shape for a in known])) > FOLDED:
        return None
    with np.errstate(all="ignore"):
        return LazyTensor.known(compute(*known), call.shape(), call.element())


def is_integer(element: Attribute) -> bool:
    """Whether the elements are integers. The answer is False for booleans."""
    return isinstance(element, IntegerType) and element != i1


def _elementwise(call: HloCall, *, name: str, operator: str) -> LazyTensor:
    found = folded(call, FOLDS.get(name))
    if found is not None:
        return found
    neutral = _neutral(name, call.operands)
    if neutral is not None:
        return neutral
    return combined(call, operator, call.operands, call.element())


def _neutral(name: str, operands: Sequence[LazyTensor]) -> LazyTensor | None:
    """
    Returns the operand that equals the result, such as x in x + 0, or None if no
    operand does. Only the sign of a zero may differ.
    """
    if name not in ("add", "multiply", "subtract", "divide") or len(operands) != 2:
        return None
    number = 0 if name in ("add", "subtract") else 1
    left, right = operands
    if (known := right.scalar) is not None and known == number:
        return left
    known = left.scalar
    if name in ("add", "multiply") and known is not None and known == number:
        return right
    return None


for _name, _operator in OPERATORS.items():
    converts(f"stablehlo.{_name}")(
        partial(_elementwise, name=_name, operator=_operator)
    )
for _name, _operator in CHLO.items():
    converts(f"chlo.{_name}")(partial(_elementwise, name="", operator=_operator))


@converts("stablehlo.and", "stablehlo.or", "stablehlo.xor", "stablehlo.not")
def _logical(call: HloCall) -> LazyTensor:
    name = call.converter.name_of(call.op).removeprefix("stablehlo.")
    truth = call.element() == i1
    compute = FOLDS[name]
    if truth:
        compute = {"not": np.logical_not}.get(name, compute)
    found = folded(call, compute)
    if found is not None:
        return found
    table = LOGICAL if truth else BITWISE
    return combined(call, table[name], call.operands, call.element())


@converts("stablehlo.constant")
def _constant(call: HloCall) -> LazyTensor:
    array = attributes.array(call.attribute("value"))
    return call.converter.constant(array, call.element())


@converts("stablehlo.compare")
def _compare(call: HloCall) -> LazyTensor:
    direction = call.word("comparison_direction")
    found = folded(call, COMPARED[direction])
    if found is not None:
        return found
    if direction != "NE":
        return combined(call, COMPARISONS[direction], call.operands, i1)
    equal = combined(call, "Equal", call.operands, i1)
    return combined(call, "Not", [equal], i1)


@converts("stablehlo.select")
def _select(call: HloCall) -> LazyTensor:
    found = folded(call, np.where)
    if found is not None:
        return found
    choice = call.operands[0].scalar
    if choice is not None:
        return call.operands[1] if choice else call.operands[2]
    return combined(call, "Where", call.operands, call.element())


@converts("stablehlo.convert")
def _convert(call: HloCall) -> LazyTensor:
    [operand], element = call.operands, call.element()
    if operand.element == element:
        return operand
    if operand.array is not None:
        array = operand.array.astype(numpy_dtype(element))
        return LazyTensor.known(array, operand.shape, element)
    return LazyTensor.of(
        call.build.cast(call.build.base(operand), element), operand.shape
    )


@converts("stablehlo.optimization_barrier", "stablehlo.copy")
def _same(call: HloCall) -> Sequence[LazyTensor]:
    return call.operands


_FORMATS = {(11, 52): f64, (8, 23): f32, (8, 7): bf16, (5, 10): f16}
"""The float types, by the bits of their exponent and of their mantissa."""


@converts("stablehlo.reduce_precision")
def _reduce_precision(call: HloCall) -> LazyTensor:
    """
    Converts the rounding of a tensor to a format with fewer bits. The result is a cast
    to the format and a cast back, or the operand itself if the format holds all numbers
    of the element type, as for values that `jax.checkpoint` saves by name.
    """
    [x], element = call.operands, call.element()
    bits = call.integer("exponent_bits"), call.integer("mantissa_bits")
    for own, kind in _FORMATS.items():
        if kind == element and all(b >= o for b, o in zip(bits, own, strict=True)):
            return x
    rounded = _FORMATS.get(bits)
    if rounded is None:
        raise UnsupportedError("it rounds to a format that is no element type")
    cast = call.build.cast(call.build.cast(call.build.base(x), rounded), element)
    return LazyTensor.of(cast, x.shape)


@converts("stablehlo.rsqrt")
def _rsqrt(call: HloCall) -> LazyTensor:
    root = combined(call, "Sqrt", call.operands, call.element())
    return combined(call, "Reciprocal", [root], call.element())


@converts("stablehlo.exponential_minus_one")
def _expm1(call: HloCall) -> LazyTensor:
    """
    Converts exp(x) - 1 to `tanh(x / 2) * (exp(x) + 1)`, which is exact for small x,
    too.
    """
    [x], element = call.operands, call.element()
    half = LazyTensor.known(np.array(0.5), (), element)
    slope = combined(call, "Tanh", [combined(call, "Mul", [x, half], element)], element)
    power = combined(call, "Exp", [x], element)
    more = combined(call, "Add", [power, one_of(call)], element)
    return combined(call, "Mul", [slope, more], element)


@converts("stablehlo.log_plus_one")
def _log1p(call: HloCall) -> LazyTensor:
    """
    Converts log(1 + x) to `log(u)` with `u = 1 + x`, times `x / (u - 1)` where `u` was
    rounded, and to `x` where `u` is 1 (Kahan's formula).
    """
    [x], element, one = call.operands, call.element(), one_of(call)
    more = combined(call, "Add", [x, one], element)
    rounded = combined(call, "Sub", [more, one], element)
    is_small = combined(call, "Equal", [more, one], i1)
    is_exact = combined(call, "Equal", [rounded, x], i1)
    divisor = combined(call, "Where", [is_small, one, rounded], element)
    ratio = combined(call, "Div", [x, divisor], element)
    factor = combined(call, "Where", [is_exact, one, ratio], element)
    logarithm = combined(call, "Log", [more], element)
    product = combined(call, "Mul", [logarithm, factor], element)
    return combined(call, "Where", [is_small, x, product], element)


@converts("chlo.square")
def _square(call: HloCall) -> LazyTensor:
    return combined(call, "Mul", [*call.operands, *call.operands], call.element())


@converts("chlo.erfc")
def _erfc(call: HloCall) -> LazyTensor:
    found = combined(call, "Erf", call.operands, call.element())
    return combined(call, "Sub", [one_of(call), found], call.element())


_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


@converts("chlo.erf_inv")
def _erf_inv(call: HloCall) -> LazyTensor:
    """
    Converts the inverse of erf at x to two polynomials of `w = -log(1 - x^2)`, one for
    w below 5 and one for larger w (M. Giles, Approximating the erfinv function). The
    polynomials have the precision of 32-bit floats.
    """
    [x], element = call.operands, call.element()
    if element not in (f32, f16, bf16):
        raise UnsupportedError("it is known for floats of at most 32 bits")

    def number(value: float) -> LazyTensor:
        return LazyTensor.known(np.array(value), (), element)

    def op(name: str, *operands: LazyTensor) -> LazyTensor:
        return combined(call, name, operands, element)

    def polynomial(at: LazyTensor, factors: Sequence[float]) -> LazyTensor:
        found = number(factors[0])
        for factor in factors[1:]:
            found = op("Add", op("Mul", found, at), number(factor))
        return found

    w = op(
        "Neg",
        op("Log", op("Mul", op("Sub", one_of(call), x), op("Add", x, one_of(call)))),
    )
    near = polynomial(op("Sub", w, number(2.5)), _NEAR)
    far = polynomial(
        op("Sub", op("Sqrt", op("Max", w, number(5.0))), number(3.0)), _FAR
    )
    is_near = combined(call, "Less", [w, number(5.0)], i1)
    return op("Mul", combined(call, "Where", [is_near, near, far], element), x)


@converts("stablehlo.cbrt")
def _cbrt(call: HloCall) -> LazyTensor:
    element = call.element()
    sign = combined(call, "Sign", call.operands, element)
    size = combined(call, "Abs", call.operands, element)
    third = LazyTensor.known(np.array(1 / 3), (), element)
    return combined(
        call, "Mul", [sign, combined(call, "Pow", [size, third], element)], element
    )


def one_of(call: HloCall) -> LazyTensor:
    """Returns the constant 1 in the element type of the op's result."""
    return LazyTensor.known(np.array(1), (), call.element())


@converts("stablehlo.is_finite")
def _is_finite(call: HloCall) -> LazyTensor:
    [operand] = call.operands
    infinite = combined(call, "IsInf", [operand], i1)
    missing = combined(call, "IsNaN", [operand], i1)
    return combined(call, "Not", [combined(call, "Or", [infinite, missing], i1)], i1)


@converts("stablehlo.remainder")
def _remainder(call: HloCall) -> LazyTensor:
    return combined(call, "Mod", call.operands, call.element(), fmod=1)


@converts("stablehlo.round_nearest_afz")
def _round_half_away(call: HloCall) -> LazyTensor:
    """
    Converts rounding that takes halves away from zero. The fraction is compared with a
    half, because adding a half to the number would itself round.
    """
    [x], element = call.operands, call.element()
    half = LazyTensor.known(np.array(0.5), (), element)
    size = combined(call, "Abs", [x], element)
    low = combined(call, "Floor", [size], element)
    rest = combined(call, "Sub", [size, low], element)
    is_more = combined(call, "GreaterOrEqual", [rest, half], i1)
    high = combined(call, "Add", [low, one_of(call)], element)
    rounded = combined(call, "Where", [is_more, high, low], element)
    return combined(
        call, "Mul", [combined(call, "Sign", [x], element), rounded], element
    )


@converts("stablehlo.clamp")
def _clamp(call: HloCall) -> LazyTensor:
    low, operand, high = call.operands
    more = combined(call, "Max", [operand, low], call.element())
    return combined(call, "Min", [more, high], call.element())


@converts("stablehlo.iota")
def _iota(call: HloCall) -> LazyTensor:
    dim, shape = call.integer("iota_dimension"), call.shape()
    element, size = call.element(), call.shape()[call.integer("iota_dimension")]
    place = (size, *[1] * (len(shape) - dim - 1))
    if size <= FOLDED:
        array = np.arange(size).reshape(place)
        return LazyTensor.known(array, shape, element)
    return LazyTensor.of(call.build.reshape(_range(call, size, element), place), shape)


def _range(call: HloCall, size: int, element: Attribute) -> SSAValue:
    from xdsl.dialects.builtin import i64

    build = call.build
    ends = [build.integer(value) for value in (0, size, 1)]
    return build.cast(build.op("Range", ends, (size,), i64), element)
