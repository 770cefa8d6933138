"""
Support for `arith` on tensors and scalars: sharding rules, constants of one device's
shape, and evaluation on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    BytesAttr,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    TensorType,
)
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.foreign.elementwise import (
    dtype_of,
    register_meaning,
    register_rules,
)
from distir.interpreters.implementations import register_reference_implementations
from distir.program import describe
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Factor, Rule, sharding_rule
from distir.sharding.rules.elementwise import Linearity

Array = npt.NDArray[Any]

# All operands of an `arith` op have the same type, layouts included. So no partial sum
# passes through a product or a quotient: the other operand would be partial, too.
_TOGETHER = ("addf", "subf", "addi", "subi", "negf")
_OTHERS = (
    *("mulf", "muli", "divf"),
    *("divui", "divsi", "floordivsi", "ceildivsi", "ceildivui", "remui", "remsi"),
    *("minsi", "maxsi", "minui", "maxui", "cmpi", "cmpf", "select"),
    *("andi", "ori", "xori", "shli", "shrui", "shrsi"),
    *("minimumf", "minnumf", "maximumf", "maxnumf", "bitcast", "index_cast"),
    *("fptosi", "fptoui", "sitofp", "uitofp", "extf", "truncf"),
    *("trunci", "extsi", "extui"),
)

_LINEARITY: dict[str, Linearity] = {
    **dict.fromkeys(_TOGETHER, "all"),
    **dict.fromkeys(_OTHERS, ""),
}

register_rules("arith", _LINEARITY)


def splat(op: Operation) -> DenseIntOrFPElementsAttr | None:
    """
    Returns the attribute of an `arith.constant` tensor whose elements are all equal.
    Returns None for any other constant or op.
    """
    value = op.properties.get("value")
    is_splat = (
        isinstance(value, DenseIntOrFPElementsAttr)
        and len(value) > 0
        and value.is_splat()
    )
    return value if is_splat and op.name == "arith.constant" else None  # type: ignore[return-value]


@sharding_rule("arith.constant")
def constant_rule(op: Operation) -> Rule:
    """
    Returns the sharding rule of a constant. A constant whose elements are all equal can
    have any layout; any other constant is replicated.
    """
    if splat(op) is None:
        return Rule.replicated(op)
    type_ = op.results[0].type
    assert isinstance(type_, TensorType)
    shape = type_.get_shape()
    return Rule(
        factors=tuple(map(Factor, shape)),
        results=(tuple((i,) for i in range(len(shape))),),
    )


@local_form("arith.constant")
def local_constant(context: LocalContext) -> Sequence[Operation]:
    """
    Returns the ops that make the constant on one device. If all elements are equal, the
    constant has the shape of the device's part.
    """
    value = splat(context.op)
    (type_,) = context.result_types
    if value is None or not isinstance(type_, TensorType):
        return [context.same_op()]
    new = context.same_op()
    first = value.data.data[: len(value.data.data) // len(value)]
    data = BytesAttr(first * prod(type_.get_shape()))
    new.properties["value"] = DenseIntOrFPElementsAttr(type_, data)
    return [new]


def _unsigned(compute: Callable[..., Any]) -> Callable[..., Any]:
    """
    Returns `compute` as a function that reinterprets its integer operands as unsigned.
    """

    def run(*args: Array) -> Any:
        return compute(*(x.view(np.dtype(f"u{x.dtype.itemsize}")) for x in args))

    return run


def _divided(x: Array, y: Array) -> Array:
    """Returns the quotient of integers, rounded towards zero."""
    floor = np.floor_divide(x, y)
    return floor + ((np.remainder(x, y) != 0) & (floor < 0))


def _divided_up(x: Array, y: Array) -> Array:
    """Returns the quotient of integers, rounded up."""
    return -np.floor_divide(-x, y)


def _divided_up_unsigned(x: Array, y: Array) -> Array:
    """Returns the quotient of unsigned integers, rounded up."""
    return np.floor_divide(x, y) + (np.remainder(x, y) != 0)


def _same(x: Array) -> Array:
    """Returns the operand as it is; the caller casts it to the type of the result."""
    return x


_FLOAT_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    np.not_equal,
)
"""
The comparisons of `arith.cmpf` in the order of its predicates: eq, gt, ge, lt, le, ne.
"""

_INTEGER_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
)
"""
The comparisons of `arith.cmpi` in the order of its predicates; the last four occur
again for unsigned integers.
"""


def _predicate(op: Operation) -> int:
    value = op.properties["predicate"]
    assert isinstance(value, IntegerAttr)
    return value.value.data


def _compare_floats(op: Operation, x: Any, y: Any) -> Any:
    """
    Evaluates `arith.cmpf`. If an operand is NaN, predicates 1 to 6 are false and 8 to
    13 are true. Predicate 7 tests that no operand is NaN, and predicate 14 that at
    least one operand is NaN. Predicate 0 is false and predicate 15 is true for all
    operands.
    """
    number = _predicate(op)
    unordered = np.isnan(x) | np.isnan(y)
    if number in (0, 15):
        return np.full(np.shape(unordered), number == 15)
    if number in (7, 14):
        return unordered if number == 14 else ~unordered
    if number < 7:
        return _FLOAT_COMPARISONS[number - 1](x, y) & ~unordered
    return _FLOAT_COMPARISONS[number - 8](x, y) | unordered


def _compare_integers(op: Operation, x: Any, y: Any) -> Any:
    number = _predicate(op)
    if number < 6:
        return _INTEGER_COMPARISONS[number](x, y)
    compare = _INTEGER_COMPARISONS[number - 4]
    return _unsigned(compare)(x, y)


def _signed(x: Array) -> Array:
    """
    Returns integers as signed numbers: the 1-bit integers 0 and 1 become 0 and -1.
    """
    return -x.astype(np.int8) if x.dtype == np.bool_ else x


def _low_bits(op: Operation, x: Array) -> Array:
    """
    Truncates integers to the width of the op's result. A cast by NumPy would give wrong
    results for 1-bit integers, because it tests whether a number is not zero.
    """
    return x & 1 if dtype_of(op.results[0].type) == np.bool_ else x


def _same_bits(op: Operation, x: Array) -> Array:
    """
    Returns the bits of the operand, reinterpreted as the element type of the op's
    result.
    """
    return x.view(dtype_of(op.results[0].type))


register_meaning(
    {
        arith.AddiOp: np.add,
        arith.SubiOp: np.subtract,
        arith.MuliOp: np.multiply,
        arith.DivSIOp: _divided,
        arith.DivUIOp: _unsigned(np.floor_divide),
        arith.FloorDivSIOp: np.floor_divide,
        arith.CeilDivSIOp: _divided_up,
        arith.CeilDivUIOp: _unsigned(_divided_up_unsigned),
        arith.RemSIOp: np.fmod,
        arith.RemUIOp: _unsigned(np.remainder),
        arith.MinSIOp: np.minimum,
        arith.MaxSIOp: np.maximum,
        arith.MinUIOp: _unsigned(np.minimum),
        arith.MaxUIOp: _unsigned(np.maximum),
        arith.AndIOp: np.bitwise_and,
        arith.OrIOp: np.bitwise_or,
        arith.XOrIOp: np.bitwise_xor,
        arith.ShLIOp: np.left_shift,
        arith.ShRSIOp: np.right_shift,
        arith.ShRUIOp: _unsigned(np.right_shift),
        arith.AddfOp: np.add,
        arith.SubfOp: np.subtract,
        arith.MulfOp: np.multiply,
        arith.DivfOp: np.divide,
        arith.NegfOp: np.negative,
        arith.MaximumfOp: np.maximum,
        arith.MinimumfOp: np.minimum,
        arith.MaxnumfOp: np.fmax,
        arith.MinnumfOp: np.fmin,
        arith.SelectOp: np.where,
        arith.IndexCastOp: _same,
        arith.FPToSIOp: np.trunc,
        arith.SIToFPOp: _signed,
        arith.UIToFPOp: _unsigned(_same),
        arith.ExtFOp: _same,
        arith.TruncFOp: _same,
        arith.ExtSIOp: _signed,
    },
    {
        arith.CmpiOp: _compare_integers,
        arith.CmpfOp: _compare_floats,
        arith.TruncIOp: _low_bits,
        arith.BitcastOp: _same_bits,
    },
)


@register_reference_implementations
@register_impls
class ArithFunctions(InterpreterFunctions):
    """The evaluation of `arith.constant`."""

    @impl(arith.ConstantOp)
    def constant(
        self, interpreter: Interpreter, op: arith.ConstantOp, args: PythonValues
    ) -> PythonValues:
        value, type_ = op.value, op.result.type
        if isinstance(value, DenseIntOrFPElementsAttr) and isinstance(
            type_, TensorType
        ):
            dtype = dtype_of(type_)
            if value.is_splat():
                number = next(iter(value.iter_values()))
                return (np.full(type_.get_shape(), number, dtype),)
            values = np.array(list(value.get_values()))
            return (values.astype(dtype).reshape(type_.get_shape()),)
        if isinstance(value, FloatAttr | IntegerAttr):
            return (np.asarray(value.value.data).astype(dtype_of(type_)),)
        raise DistIRError(f"{describe(op)}: a value of type {type_} cannot be computed")
