"""Conversions of reductions: sums, products, extremes, and positions of extremes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import AnyFloat, i1, i32, i64
from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor, Shape, count

REDUCTIONS = {
    "stablehlo.add": ("ReduceSum", "Add"),
    "stablehlo.multiply": ("ReduceProd", "Mul"),
    "stablehlo.maximum": ("ReduceMax", "Max"),
    "stablehlo.minimum": ("ReduceMin", "Min"),
    "stablehlo.and": ("ReduceMin", "Min"),
    "stablehlo.or": ("ReduceMax", "Max"),
}
"""
Two ONNX operators by the op that combines two elements: the reduction, and the operator
that combines two of its results.
"""


@converts("stablehlo.reduce")
def _reduce(call: HloCall) -> Sequence[LazyTensor]:
    dims, body = call.integers("dimensions"), call.body()
    half = len(call.operands) // 2
    if half == 2:
        return _extreme_with_position(call, dims)
    if half != 1 or len(body) != 1:
        raise UnsupportedError("it reduces with more than one op")
    known = REDUCTIONS.get(call.converter.name_of(body[0]))
    if known is None:
        raise UnsupportedError(
            f"it reduces with {call.converter.name_of(body[0])}; sums, products, "
            f"minima, maxima, `and` and `or` are known"
        )
    operator, combine = known
    operand, start = call.operands
    value = reduced(call, operand, operator, dims)
    if not is_neutral(operator, start):
        inputs = [call.build.base(value), call.build.base(start)]
        both = call.build.op(combine, inputs, value.base, value.element)
        value = LazyTensor.of(both, value.shape)
    return [value]


def is_neutral(operator: str, start: LazyTensor) -> bool:
    """Whether the initial value `start` does not change the result of a reduction."""
    number = start.scalar
    if number is None:
        return False
    if operator in ("ReduceSum", "ReduceProd"):
        return bool(number == (operator == "ReduceProd"))
    if start.element == i1:
        return bool(number) == (operator == "ReduceMin")
    lowest = operator == "ReduceMax"
    if isinstance(start.element, AnyFloat):
        return bool(np.isinf(number)) and bool(number < 0) == lowest
    info = np.iinfo(numpy_dtype(start.element))
    return int(number) == (info.min if lowest else info.max)


def reduced(
    call: HloCall, operand: LazyTensor, operator: str, dims: Sequence[int]
) -> LazyTensor:
    """
    Returns the reduction of a tensor over `dims`, without these dimensions. Dimensions
    along which the tensor is only broadcast need not be materialized.
    """
    shape = tuple(s for dim, s in enumerate(operand.shape) if dim not in dims)
    element = operand.element
    aligned = operand.aligned
    real = [dim for dim in dims if aligned[dim] != 1]
    copies = count([operand.shape[dim] for dim in dims if aligned[dim] == 1])
    value = call.build.with_rank(operand)
    if real:
        value = reduction(call, value, operator, real)
    base = tuple(
        1 if dim in real else size
        for dim, size in enumerate(aligned)
        if dim not in dims
    )
    value = call.build.reshape(value, base)
    if copies != 1 and operator in ("ReduceSum", "ReduceProd"):
        times = call.build.constant(np.array(copies), element)
        name = "Mul" if operator == "ReduceSum" else "Pow"
        value = call.build.op(name, [value, times], base, element)
    return LazyTensor.of(value, shape)


def reduction(
    call: HloCall, value: SSAValue, operator: str, dims: Sequence[int]
) -> SSAValue:
    """Returns the reduction of `value` over `dims`, which keep the size 1."""
    own = LazyTensor.of(value)
    shape = [1 if dim in dims else size for dim, size in enumerate(own.shape)]
    build, element = call.build, own.element
    narrow = element if element == i1 else None
    if narrow is not None:
        element = i32
        value = build.cast(value, element)
    value = build.op(
        operator, [value, build.integers(*dims)], shape, element, keepdims=1
    )
    return value if narrow is None else build.cast(value, narrow)


def _extreme_with_position(call: HloCall, dims: Sequence[int]) -> Sequence[LazyTensor]:
    """
    Converts a reduction of pairs of a value and a position, as `jnp.argmax` and
    `jnp.argmin` make it. Raises UnsupportedError for any other reduction of pairs.
    """
    operand, places = call.operands[:2]
    names = {call.converter.name_of(op) for op in call.body()}
    # The elements are the first arguments of the body, their positions the second ones.
    elements = call.op.regions[0].block.args[0]
    comparisons = {
        call.converter.word(op, "comparison_direction")
        for op in call.body()
        if call.converter.name_of(op) == "stablehlo.compare"
        and op.operands[0] is elements
    } & {"LT", "LE", "GT", "GE"}
    known = {"stablehlo.compare", "stablehlo.select", "stablehlo.or", "stablehlo.and"}
    if len(dims) != 1 or names - known or not _counts_up(places, dims[0]):
        raise UnsupportedError(
            "it reduces several tensors at once, which is known of argmax and argmin"
        )
    highest = bool(comparisons & {"GT", "GE"})
    if len(comparisons) != 1:
        raise UnsupportedError("it compares in a way that is no argmax and no argmin")
    dim, build = dims[0], call.build
    value = build.whole(operand)
    extreme = reduced(
        call, LazyTensor.of(value), "ReduceMax" if highest else "ReduceMin", dims
    )
    name = "ArgMax" if highest else "ArgMin"
    shape = call.shape(1)
    place = build.op(name, [value], shape, i64, axis=dim, keepdims=0)
    return [extreme, LazyTensor.of(build.cast(place, call.element(1)))]


def _counts_up(places: LazyTensor, dim: int) -> bool:
    """
    Whether each element of a tensor is its own position along dimension `dim`, as in an
    `iota`.
    """
    size = places.shape[dim]
    expected: Shape = tuple(size if d == dim else 1 for d in range(len(places.shape)))
    if places.array is not None:
        aligned = places.array.reshape(places.aligned)
        return aligned.shape == expected and bool(
            (aligned.reshape(-1) == np.arange(size)).all()
        )
    source = None if places.value is None else places.value.owner
    while isinstance(source, Operation) and source.name in (
        "onnx.Reshape",
        "onnx.Cast",
    ):
        source = source.operands[0].owner
    return isinstance(source, Operation) and source.name == "onnx.Range"
