"""Conversions of sorts and of `top_k`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.onnx import operator
from distir.dialects.tensors import tensor_of
from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor


@converts("chlo.top_k")
def _top_k(call: HloCall) -> Sequence[LazyTensor]:
    rank = len(call.shape())
    values, places = _ordered(call, call.operands[0], call.shape(), rank - 1, True)
    return [
        LazyTensor.of(values),
        LazyTensor.of(call.build.cast(places, call.element(1))),
    ]


def _ordered(
    call: HloCall, operand: LazyTensor, shape: Sequence[int], dim: int, highest: bool
) -> tuple[SSAValue, SSAValue]:
    """
    Returns the first `shape[dim]` elements in sorted order along `dim`, and their
    positions. The order is descending if `highest`, else ascending.
    """
    op = operator("TopK").build_op(
        [call.build.whole(operand), call.build.integers(shape[dim])],
        [tensor_of(operand.element, tuple(shape)), tensor_of(i64, tuple(shape))],
        {"axis": dim, "largest": int(highest), "sorted": 1},
    )
    values, places = call.build.add(op).results
    return values, places


def _arguments_of(value: SSAValue) -> set[int]:
    """Returns the indices of the block arguments from which `value` is computed."""
    if isinstance(value, BlockArgument):
        return {value.index}
    assert isinstance(value.owner, Operation)
    return {i for operand in value.owner.operands for i in _arguments_of(operand)}


@converts("stablehlo.sort")
def _sort(call: HloCall) -> Sequence[LazyTensor]:
    """
    Converts a sort by the first operand, which puts all other operands into the same
    order. Raises UnsupportedError if the comparison uses an operand other than the
    first.
    """
    shape, build = call.shape(), call.build
    dim = call.integer("dimension", len(shape) - 1) % len(shape)
    compared = [
        op
        for op in call.body()
        if call.converter.name_of(op) == "stablehlo.compare"
        and call.converter.word(op, "comparison_direction") in ("LT", "GT")
    ]
    if len(compared) != 1:
        raise UnsupportedError("it sorts by more than one number")
    [comparison] = compared
    sides = [_arguments_of(value) for value in comparison.operands]
    if sides not in ([{0}, {1}], [{1}, {0}]):
        raise UnsupportedError("it does not sort by its first operand alone")
    is_greater = call.converter.word(comparison, "comparison_direction") == "GT"
    first, *others = call.operands
    descending = is_greater == (sides == [{0}, {1}])
    values, places = _ordered(call, first, shape, dim, descending)
    found = [LazyTensor.of(values)]
    for other in others:
        inputs = [build.whole(other), places]
        found.append(
            LazyTensor.of(
                build.op("GatherElements", inputs, shape, other.element, axis=dim)
            )
        )
    return found
