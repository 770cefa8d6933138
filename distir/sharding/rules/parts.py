"""
Sharding rules of ops that cut a dimension into parts or join parts, and their local
forms: the ops of one device.

Parts of sizes 4, 2, 2 all consist of pieces of their greatest common divisor 2: the
joined dimension is `[4 pieces, 2]`, the parts `[2, 2]`, `[1, 2]` and `[1, 2]`. The
piece, which is the minor factor, may be split. In this way a fused QKV is split over
heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import (
    ANY,
    SUM,
    Dims,
    RuleBuilder,
    attribute_axis,
    constant_axes,
    constant_operand,
    onnx_rule,
)
from distir.sharding.rules.local_builder import LocalBuilder


def _with(dims: Dims, axis: int, dim: Dim) -> Dims:
    return (*dims[:axis], dim, *dims[axis + 1 :])


def _pieces(builder: RuleBuilder, sizes: Sequence[int], piece: Dim) -> list[Dim]:
    """
    Returns each size as a dimension that consists of pieces of the size of `piece`. A
    size of 0 has no factors.
    """
    size = builder.size(piece)
    return [builder.factor(n // size, "replicate") + piece if n else () for n in sizes]


@onnx_rule("Concat", "Split")
def concat_or_split(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Concat and of its inverse Split. Concat is linear in
    all operands together.
    """
    builder = RuleBuilder(op)
    joins = op.name == "onnx.Concat"
    operands, results = op.operands if joins else op.operands[:1], op.results
    whole = shape_of(results[0] if joins else operands[0])
    axis = attribute_axis(op, len(whole))
    sizes = [shape_of(value)[axis] for value in (*operands, *results)]
    dims = builder.factors(_one_at(whole, axis))
    pieces = _pieces(builder, sizes, builder.factor(gcd(*sizes)))
    values = [_with(dims, axis, piece) for piece in pieces]
    count = len(operands)
    return builder.rule(
        values[:count], values[count:], linear=[range(count)], reductions=ANY
    )


def _one_at(sizes: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """
    Returns the shape `sizes` with size 1 at `axis`, because the factors of this
    dimension are added separately.
    """
    return (*sizes[:axis], 1, *sizes[axis + 1 :])


@local_form("onnx.Split")
def split_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for Split: the op with the sizes of the parts on this
    device.
    """
    builder = LocalBuilder(context)
    source = shape_of(context.op.operands[0])
    axis = attribute_axis(builder.op, len(source))
    local = [builder.result_shape(i)[axis] for i in range(len(context.op.results))]
    if sum(local) == source[axis]:
        return [context.same_op()]
    sizes = builder.shape_constant(local)
    return builder.finish([builder.input(0), sizes], drop=("num_outputs",))


def _slices(op: OnnxOp) -> dict[int, tuple[int, int, int]] | None:
    """
    Returns the start, end and step of the slice by axis, as Python's `slice.indices`
    normalises them. Returns None if any of these numbers is not constant.
    """
    starts, ends = constant_operand(op, 1), constant_operand(op, 2)
    if starts is None or ends is None:
        return None
    source = shape_of(op.operands[0])
    axes = (
        range(len(starts)) if op.input(3) is None else constant_axes(op, 3, len(source))
    )
    steps = np.ones_like(starts) if op.input(4) is None else constant_operand(op, 4)
    if axes is None or steps is None:
        return None
    return {
        axis: slice(int(start), int(end), int(step)).indices(source[axis])
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


@onnx_rule("Slice")
def slice_(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Slice. An uncut dimension is a parallel factor. A
    dimension that is cut with step 1 consists of pieces that the cut does not break.
    Any other dimension is whole.
    """
    builder = RuleBuilder(op)
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    cuts = _slices(op)
    before: list[Dim] = []
    after: list[Dim] = []
    for axis, (size, kept) in enumerate(zip(source, target, strict=True)):
        if cuts is None:
            # Without steps nothing can be reversed: equal size means untouched.
            same = size == kept and op.input(4) is None
            piece = builder.factor(size if same else 1)
        else:
            start, _, step = cuts.get(axis, (0, size, 1))
            piece = builder.factor(gcd(size, kept, start) if step == 1 else 1)
        cut, rest = _pieces(builder, [size, kept], piece)
        before.append(cut)
        after.append(rest)
    return builder.rule([tuple(before)], [tuple(after)], linear=[(0,)], reductions=ANY)


@local_form("onnx.Slice")
def slice_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for Slice: the op with the starts and ends of split
    dimensions as positions in this device's part.
    """
    builder = LocalBuilder(context)
    cuts = _slices(builder.op)
    source = shape_of(context.op.operands[0])
    local = shape_of(context.operands[0])
    starts, ends = (constant_operand(builder.op, i) for i in (1, 2))
    if cuts is None or starts is None or ends is None or source == local:
        return [context.same_op()]
    starts, ends = starts.copy(), ends.copy()
    for index, (axis, (start, end, _)) in enumerate(cuts.items()):
        if source[axis] != local[axis]:
            parts = source[axis] // local[axis]
            starts[index], ends[index] = start // parts, end // parts
    bounds = [builder.constant(starts), builder.constant(ends)]
    return builder.finish([builder.input(0), *bounds, *builder.inputs[3:]])


@onnx_rule("Pad")
def pad(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Pad. Padded dimensions are whole. Padding with zeros or
    with copies of elements is linear.
    """
    builder = RuleBuilder(op)
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    rank = len(source)
    pads = constant_operand(op, 1)
    axes = range(rank) if op.input(3) is None else constant_axes(op, 3, rank)
    if pads is None or axes is None:
        return Rule.replicated(op)
    padded: set[int] = set()
    for i, axis in enumerate(axes):
        if pads[i] or pads[i + len(axes)]:
            padded.add(axis)
    before = builder.whole_along(source, padded)
    after = tuple(
        builder.factor(target[axis], "replicate") if axis in padded else dim
        for axis, dim in enumerate(before)
    )
    value = constant_operand(op, 2)
    if op.attribute("mode") != "constant":
        linear, reductions = [(0,)], ANY
    else:
        zero = op.input(2) is None or (value is not None and not value.any())
        linear, reductions = [(0,)] if zero else [], SUM
    return builder.rule([before], [after], linear=linear, reductions=reductions)
