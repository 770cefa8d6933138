"""
Sharding rules of ops that regroup or stretch dimensions, fill a tensor with one value,
or return a tensor's shape, and their local forms: the ops of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import BytesAttr, DenseIntOrFPElementsAttr, TensorType
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import ANY, Dim, Dims, RuleBuilder, onnx_rule, whole
from distir.sharding.rules.local_builder import LocalBuilder, is_split


def refine(
    builder: RuleBuilder, source: Sequence[int], target: Sequence[int]
) -> tuple[Dims, Dims]:
    """
    Returns the greatest common refinement of two shapes that hold the same elements in
    the same order: `[6]` and `[2, 3]` give `[i j]` and `[i, j]`.

    Factors are matched from the major end and from the minor end. Sizes that are left
    between them (`[2, 3]` and `[3, 2]`) cannot be split.
    """
    left, right = _Side(source), _Side(target)
    while (size := left.common(right, 0)) > 1:
        factor = builder.factor(size)
        left.take(0, size, factor)
        right.take(0, size, factor)
    while (size := left.common(right, -1)) > 1:
        factor = builder.factor(size)
        left.take(-1, size, factor)
        right.take(-1, size, factor)
    for side in (left, right):
        for _, size in list(side.open):
            side.take(0, size, builder.factor(size, "replicate"))
    return left.dims, right.dims


class _Side:
    """
    One of the two shapes of `refine`: the sizes that have no factors yet, and the
    factors found so far.
    """

    def __init__(self, sizes: Sequence[int]):
        self.open = [(index, size) for index, size in enumerate(sizes) if size > 1]
        self._major: list[Dim] = [() for _ in sizes]
        self._minor: list[Dim] = [() for _ in sizes]

    def common(self, other: _Side, end: int) -> int:
        """
        Returns the greatest common divisor of the sizes of both sides at the end `end`
        (0 for the major end, -1 for the minor end), or 1 if a side is used up.
        """
        if not self.open or not other.open:
            return 1
        return gcd(self.open[end][1], other.open[end][1])

    def take(self, end: int, size: int, factor: Dim) -> None:
        """
        Splits `factor`, of `size` elements, off the dimension at the end `end` (0 for
        the major end, -1 for the minor end).
        """
        index, left = self.open.pop(end)
        if end == 0:
            self._major[index] += factor
        else:
            self._minor[index] = factor + self._minor[index]
        if left > size:
            position = 0 if end == 0 else len(self.open)
            self.open.insert(position, (index, left // size))

    @property
    def dims(self) -> Dims:
        return tuple(a + b for a, b in zip(self._major, self._minor, strict=True))


@onnx_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Reshape, Flatten, Squeeze and Unsqueeze, which follows
    from the shapes of the operand and the result.
    """
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    if 0 in source:
        return Rule.replicated(op)
    builder = RuleBuilder(op)
    before, after = refine(builder, source, target)
    return builder.rule([before], [after], linear=[(0,)], reductions=ANY)


@local_form("onnx.Reshape", "onnx.Expand")
def to_local_shape(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for Reshape and Expand: the op with the shape of this
    device's part as its target.
    """
    if not is_split(context):
        return [context.same_op()]
    builder = LocalBuilder(context)
    target = builder.shape_constant(builder.result_shape())
    return builder.finish([builder.input(0), target])


@local_form("onnx.Squeeze")
def squeeze_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for Squeeze. The op lists the axes explicitly, because a
    split dimension may have size 1 on a device.
    """
    builder = LocalBuilder(context)
    if not is_split(context) or builder.input(1) is not None:
        return [context.same_op()]
    axes = [i for i, size in enumerate(shape_of(context.op.operands[0])) if size == 1]
    return builder.finish([builder.input(0), builder.shape_constant(axes)])


@onnx_rule("Transpose")
def transpose(op: OnnxOp) -> Rule:
    """Returns the sharding rule of Transpose, which permutes the dimensions."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.operands[0]))
    order = op.attribute("perm", list(reversed(range(len(dims)))))
    return builder.rule(
        [dims], [tuple(dims[i] for i in order)], linear=[(0,)], reductions=ANY
    )


def _equal(op: OnnxOp) -> DenseIntOrFPElementsAttr | None:
    """
    Returns the value of an `onnx.Constant` of several elements that are all equal.
    Returns None for any other constant.
    """
    value = op.properties.get("value")
    if not isinstance(value, DenseIntOrFPElementsAttr) or len(value) < 2:
        return None
    return value if value.is_splat() else None


@onnx_rule("Constant")
def constant(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Constant. A constant whose elements are all equal can
    be made in any layout; any other constant is whole on each device.
    """
    if _equal(op) is None:
        return Rule.replicated(op)
    builder = RuleBuilder(op)
    return builder.rule([], [builder.factors(shape_of(op.results[0]))])


@local_form("onnx.Constant")
def local_constant(context: LocalContext) -> Sequence[Operation]:
    """Returns the constant of one device: the same value in the local shape."""
    assert isinstance(context.op, OnnxOp)
    value, (type_,) = _equal(context.op), context.result_types
    new = context.same_op()
    if value is not None:
        assert isinstance(type_, TensorType)
        own: Any = TensorType(type_.element_type, type_.get_shape())
        size = value.get_element_type().compile_time_size * prod(type_.get_shape())
        data = BytesAttr(value.data.data[:size])
        new.properties["value"] = DenseIntOrFPElementsAttr(own, data)
    return [new]


@onnx_rule("ConstantOfShape")
def constant_of_shape(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of ConstantOfShape, whose result can be made in any
    layout.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.results[0])
    if min(sizes, default=0) < 0:
        return Rule.replicated(op)
    rule = builder.rule([((),)], [builder.factors(sizes)])
    return replace(rule, fills=True)


@local_form("onnx.ConstantOfShape")
def local_constant_of_shape(context: LocalContext) -> Sequence[Operation]:
    """Returns ConstantOfShape with the shape of this device's part."""
    (type_,) = context.result_types
    if shape_of(type_) == shape_of(context.op.results[0]):
        return [context.same_op()]
    builder = LocalBuilder(context)
    return builder.finish([builder.shape_constant(shape_of(type_))])


@onnx_rule("Expand")
def expand(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Expand. Each dimension of the operand is a factor
    unless its size is 1. A stretched dimension is whole on each device; this costs
    nothing, because cutting a slice of it is free.
    """
    builder = RuleBuilder(op)
    sizes, target = shape_of(op.operands[0]), shape_of(op.results[0])
    dims = builder.factors(sizes)
    new = len(target) - len(sizes)
    return builder.rule([dims], [((),) * new + dims], linear=[(0,)], reductions=ANY)


@onnx_rule("Tile")
def tile(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Tile. Each dimension of the result consists of copies
    of the operand's dimension. The operand's dimension may be split, but not the number
    of copies.
    """
    builder = RuleBuilder(op)
    sizes, target = shape_of(op.operands[0]), shape_of(op.results[0])
    if 0 in sizes or 0 in target:
        return Rule.replicated(op)
    dims = builder.factors(sizes)
    result = tuple(
        builder.factor(after // before, "replicate") + dim
        for before, after, dim in zip(sizes, target, dims, strict=True)
    )
    return builder.rule([dims], [result], linear=[(0,)], reductions=ANY)


@onnx_rule("DepthToSpace", "SpaceToDepth")
def depth_and_space(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of DepthToSpace and SpaceToDepth. These ops relate `[n, (p
    q c), h, w]` and `[n, c, (h p), (w q)]`; `p` and `q` are whole. In `CRD` mode the
    channels are `(c p q)`.
    """
    builder = RuleBuilder(op)
    to_space = op.name == "onnx.DepthToSpace"
    n, c, h, w = shape_of(op.results[0] if to_space else op.operands[0])
    block = op.attribute("blocksize")
    p, q = builder.factors((block, block), "replicate")
    batch, channel, height, width = builder.factors((n, c, h // block, w // block))
    channels_first = to_space and op.attribute("mode") == "CRD"
    depth = channel + p + q if channels_first else p + q + channel
    deep = (batch, depth, height, width)
    wide = (batch, channel, height + p, width + q)
    before, after = (deep, wide) if to_space else (wide, deep)
    return builder.rule([before], [after], linear=[(0,)], reductions=ANY)


@onnx_rule("Shape", "Size")
def shape_query(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Shape and Size. The operand may be split in any way,
    because the result describes the whole tensor.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.operands[0]))
    return builder.rule([dims], [whole(op.results[0])])


@local_form("onnx.Shape")
def shape_local(context: LocalContext) -> Sequence[Operation]:
    """Returns one device's ops for Shape: the global shape as a constant."""
    builder = LocalBuilder(context)
    sizes = shape_of(context.op.operands[0])
    start, end = builder.op.attribute("start"), builder.op.attribute("end", len(sizes))
    builder.shape_constant(sizes[start:end])
    return builder.ops


@local_form("onnx.Size")
def size_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for Size: the global number of elements as a constant.
    """
    builder = LocalBuilder(context)
    count = prod(shape_of(context.op.operands[0]))
    builder.constant(np.array(count, dtype=np.int64))
    return builder.ops
