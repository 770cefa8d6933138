"""Conversions of sorts and of `top_k`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

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


@converts("stablehlo.sort")
def _sort(call: HloCall) -> Sequence[LazyTensor]:
    """
    Converts a sort by the first operand; the other operands are permuted like it.
    Raises UnsupportedError if the comparison uses more than one operand.
    """
    shape, build = call.shape(), call.build
    dim = call.integer("dimension", len(shape) - 1) % len(shape)
    directions = {
        call.converter.word(op, "comparison_direction")
        for op in call.body()
        if call.converter.name_of(op) == "stablehlo.compare"
    } & {"LT", "GT"}
    if len(directions) != 1:
        raise UnsupportedError("it sorts by more than one number")
    first, *others = call.operands
    values, places = _ordered(call, first, shape, dim, directions == {"GT"})
    found = [LazyTensor.of(values)]
    for other in others:
        inputs = [build.whole(other), places]
        found.append(
            LazyTensor.of(
                build.op("GatherElements", inputs, shape, other.element, axis=dim)
            )
        )
    return found
