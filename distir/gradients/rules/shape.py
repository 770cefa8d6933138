"""
Gradient rules of ops that reshape, permute, repeat, slice and concatenate tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import SSAValue

from distir.dialects.constants import direct_constant
from distir.dialects.onnx_ops.op import OnnxOp
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
    shape,
)
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe


def zeros(sizes: Sequence[int], like: SSAValue, build: GradientBuilder) -> SSAValue:
    """
    Returns a tensor of zeros with the shape `sizes` and the element type of `like`.
    """
    return build.onnx("Expand", build.scalar(0, like), build.integers(sizes))


def constant_input(op: OnnxOp, index: int) -> npt.NDArray[Any] | None:
    """
    Returns the value of the input at position `index`, or None if the input is omitted.
    Raises DistIRError if the input is not a constant.
    """
    value = op.input(index)
    if value is None:
        return None
    known = direct_constant(value)
    if known is None:
        name = op.SCHEMA.inputs[index].name
        raise DistIRError(
            f"{describe(op)} has a gradient only where {name!r} is a constant; run "
            "fold-shapes first"
        )
    return known


def padded(
    value: SSAValue, begins: Sequence[int], ends: Sequence[int], build: GradientBuilder
) -> SSAValue:
    """
    Returns `value` with `begins[i]` zeros before dimension i and `ends[i]` zeros after
    it. Negative numbers remove elements.
    """
    if not any((*begins, *ends)):
        return value
    if max(*begins, *ends) > 0:
        return build.onnx("Pad", value, build.integers([*begins, *ends]))
    sizes = shape(value)
    axes = [i for i, pair in enumerate(zip(begins, ends, strict=True)) if any(pair)]
    return build.onnx(
        "Slice",
        value,
        build.integers([-begins[i] for i in axes]),
        build.integers([sizes[i] + ends[i] for i in axes]),
        build.integers(axes),
    )


@onnx_gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of reshapes: dy in the shape of the operand."""
    dx = build.reshape_like(gradient, op.operands[0])
    return [dx]


@onnx_gradient("Transpose")
def transpose(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Transpose: dy with the inverse permutation. If dy is a product of
    two matrices, the rule builds the product in the other order, without a transpose.
    """
    rank = len(shape(op.operands[0]))
    order = op.attribute("perm", list(reversed(range(rank))))
    inverse = [int(i) for i in np.argsort(order)]
    product = dy.owner
    if inverse == [1, 0] and isinstance(product, OnnxOp) and _is_plain_gemm(product):
        left, right = product.operands
        flipped = build.onnx(
            "Gemm",
            right,
            left,
            transA=1 - product.attribute("transB"),
            transB=1 - product.attribute("transA"),
        )
        return [flipped]
    return [build.onnx("Transpose", dy, perm=inverse)]


def _is_plain_gemm(op: OnnxOp) -> bool:
    return (
        op.name == "onnx.Gemm"
        and len(op.operands) == 2
        and op.attribute("alpha") == 1.0
    )


@onnx_gradient("SpaceToDepth")
def space_to_depth(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of SpaceToDepth: the inverse rearrangement of dy."""
    block = op.attribute("blocksize")
    return [build.onnx("DepthToSpace", dy, blocksize=block)]


@onnx_gradient("DepthToSpace")
def depth_to_space(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of DepthToSpace: the inverse rearrangement of dy. In CRD mode a
    transpose follows, because SpaceToDepth puts blocks before channels.
    """
    block = op.attribute("blocksize")
    dx = build.onnx("SpaceToDepth", dy, blocksize=block)
    if op.attribute("mode") == "CRD":
        n, c, h, w = shape(dx)
        parts = build.integers([n, block * block, c // block**2, h, w])
        dx = build.onnx("Reshape", dx, parts)
        dx = build.onnx("Transpose", dx, perm=[0, 2, 1, 3, 4])
        dx = build.onnx("Reshape", dx, build.integers([n, c, h, w]))
    return [dx]


@onnx_gradient("Expand")
def expand(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Expand: the sum of dy over the copies of each element."""
    return [build.sum_to(gradient, op.operands[0])]


@onnx_gradient("Tile")
def tile(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Tile: the sum of dy over the copies of each element."""
    sizes, axes = [], []
    for before, after in zip(shape(op.operands[0]), shape(gradient), strict=True):
        if after != before:
            axes.append(len(sizes))
            sizes.append(after // before)
        sizes.append(before)
    if not axes:
        return [gradient]
    copies = build.onnx("Reshape", gradient, build.integers(sizes))
    return [build.onnx("ReduceSum", copies, build.integers(axes), keepdims=0)]


@onnx_gradient("Concat")
def concat(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Concat: each operand gets the part of dy at the operand's position.
    """
    if len(op.operands) == 1:
        return [gradient]
    axis = op.attribute("axis") % len(shape(op.results[0]))
    sizes = [shape(v)[axis] for v in op.operands]
    return build.onnx_results(
        "Split", gradient, build.integers(sizes), results=len(sizes), axis=axis
    )


@gradient_rule("onnx.Split")
def split(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Split: the concatenated gradients of the parts, with zeros for
    parts without a gradient.
    """
    parts = [
        zeros(shape(r), r, build) if g is None else g
        for r, g in zip(op.results, gradients, strict=True)
    ]
    dx = parts[0]
    if len(parts) > 1:
        axis = op.attribute("axis") % len(shape(op.results[0]))
        dx = build.onnx("Concat", *parts, axis=axis)
    return [dx, *[None] * (len(op.operands) - 1)]


@onnx_gradient("Pad")
def pad(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Pad: the operand gets the part of dy without the padding, and the
    padding value gets the sum of the rest. Raises DistIRError for modes that pad with
    elements of the operand.
    """
    mode = op.attribute("mode")
    if mode != "constant":
        raise DistIRError(
            f"{describe(op)} has no gradient rule for mode {mode!r}; pad by a constant"
        )
    rank = len(shape(op.operands[0]))
    pads, axes = constant_input(op, 1), constant_input(op, 3)
    assert pads is not None
    over = [int(a) % rank for a in (range(rank) if axes is None else axes.reshape(-1))]
    begins, ends = [0] * rank, [0] * rank
    for i, axis in enumerate(over):
        begins[axis], ends[axis] = -int(pads[i]), -int(pads[i + len(over)])
    dx = padded(gradient, begins, ends, build)
    found: list[SSAValue | None] = [None] * len(op.operands)
    found[0] = dx
    fill = op.input(2)
    if fill is not None and is_wanted(fill):
        whole = build.onnx("ReduceSum", gradient, keepdims=0)
        inside = build.onnx("ReduceSum", dx, keepdims=0)
        found[2] = build.reshape_like(build.onnx("Sub", whole, inside), fill)
    return found


@onnx_gradient("Slice")
def slice_(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Slice: dy padded with zeros to the operand's shape. Along
    dimensions with a negative step, dy is first reversed. Along dimensions with a step
    larger than 1, zeros are put between the elements of dy.
    """
    nothing = [None] * (len(op.operands) - 1)
    sizes, kept = shape(op.operands[0]), shape(gradient)
    if 0 in kept:
        return [None, *nothing]
    chosen = _chosen(op)
    reverse = [axis for axis, indices in chosen.items() if indices.step < 0]
    if reverse:
        count = len(reverse)
        gradient = build.onnx(
            "Slice",
            gradient,
            build.integers([-1] * count),
            build.integers([np.iinfo(np.int64).min] * count),
            build.integers(reverse),
            build.integers([-1] * count),
        )
    steps = [
        abs(chosen[axis].step) if axis in chosen and size > 1 else 1
        for axis, size in enumerate(kept)
    ]
    gradient = _spread(gradient, steps, build)
    begins = [min(chosen[a]) if a in chosen else 0 for a in range(len(sizes))]
    ends = [
        size - begin - have
        for size, begin, have in zip(sizes, begins, shape(gradient), strict=True)
    ]
    return [padded(gradient, begins, ends, build), *nothing]


def _chosen(op: OnnxOp) -> dict[int, range]:
    """Returns the indices that a Slice takes along each of its axes."""
    sizes = shape(op.operands[0])
    starts, ends, axes, steps = (constant_input(op, i) for i in range(1, 5))
    assert starts is not None and ends is not None
    count = starts.size
    axes = np.arange(count) if axes is None else axes
    steps = np.ones(count, np.int64) if steps is None else steps
    chosen: dict[int, range] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = sizes[int(axis)]
        window = slice(int(start), int(end), int(step)).indices(size)
        chosen[int(axis) % len(sizes)] = range(*window)
    return chosen


def _spread(value: SSAValue, steps: Sequence[int], build: GradientBuilder) -> SSAValue:
    """
    Returns `value` with zeros after each element: `steps[i] - 1` zeros along dimension
    i.
    """
    if all(step == 1 for step in steps):
        return value
    rows: list[int] = []
    ends: list[int] = []
    spread: list[int] = []
    for size, step in zip(shape(value), steps, strict=True):
        rows += [size] if step == 1 else [size, 1]
        ends += [0] if step == 1 else [0, step - 1]
        spread.append(size * step)
    value = build.onnx("Reshape", value, build.integers(rows))
    value = padded(value, [0] * len(ends), ends, build)
    return build.onnx(
        "Reshape",
        value,
        build.integers(spread),
    )
