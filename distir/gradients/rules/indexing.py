"""Gradient rules of look-ups and scatters, of TopK and of Trilu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from distir.dialects.constants import direct_constant
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.indexing import GatherGradOp, ScatterSumOp
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
    shape,
)
from distir.gradients.rules.arithmetic import is_wanted
from distir.gradients.rules.shape import zeros


@onnx_gradient("GatherElements")
def gather_elements(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of GatherElements: every element of dy is added at the position where
    the element was read.
    """
    data, indices = op.operands
    made = ScatterSumOp(dy, indices, axis=op.attribute("axis"), result=data.type)
    return [build.result(made)]


@onnx_gradient("GatherND")
def gather_nd(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of GatherND: every slice of dy is added at the position where the
    slice was read.
    """
    data, indices = op.operands
    count = op.attribute("batch_dims") or None
    made = ScatterSumOp(dy, indices, batch_dims=count, result=data.type)
    return [build.result(made)]


@dataclass(frozen=True)
class _WrittenPlaces:
    """The positions that the indices of a scatter op name in the op's data operand."""

    op: OnnxOp
    build: GradientBuilder

    def read(self, value: SSAValue) -> SSAValue:
        """
        Returns the elements of `value` at the positions to which the scatter writes.
        `value` has the shape of the scatter's data.
        """
        return self._at("Gather", value)

    def written(self, value: SSAValue, updates: SSAValue, reduction: str) -> SSAValue:
        """
        Returns `value` with `updates` written at the positions to which the scatter
        writes. `value` has the shape of the scatter's data. `reduction` names the op
        that combines old and new elements.
        """
        return self._at("Scatter", value, updates, reduction=reduction)

    def _at(self, kind: str, *values: SSAValue, **attributes: Any) -> SSAValue:
        name = f"{kind}ND"
        if self.op.name == "onnx.ScatterElements":
            name = f"{kind}Elements"
            attributes["axis"] = self.op.attribute("axis")
        first, *more = values
        return self.build.onnx(name, first, self.op.operands[1], *more, **attributes)


@onnx_gradient("ScatterElements", "ScatterND")
def scatter(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of scatters. The updates get dy at the positions where they were
    written. The data gets dy with zeros at these positions, or all of dy if updates are
    added. If the scatter takes a maximum or minimum, the data and the updates that
    equal the result share dy evenly, as in PyTorch.
    """
    data, _, updates = op.operands
    reduction, places = op.attribute("reduction"), _WrittenPlaces(op, build)
    if reduction in ("max", "min"):
        return _of_extremes(op, gradient, places, build)
    if reduction == "mul":
        return _of_products(op, gradient, places, build)
    d_data = d_updates = None
    if is_wanted(data):
        d_data = gradient
        if reduction == "none":
            nothing = zeros(shape(updates), updates, build)
            d_data = places.written(gradient, nothing, "none")
    if is_wanted(updates):
        d_updates = places.read(gradient)
    return [d_data, None, d_updates]


def _of_extremes(
    op: OnnxOp, gradient: SSAValue, places: _WrittenPlaces, build: GradientBuilder
) -> Gradients:
    data, _, updates = op.operands
    found = op.results[0]
    own = build.cast(build.onnx("Equal", data, found), gradient)
    theirs = build.cast(build.onnx("Equal", updates, places.read(found)), gradient)
    share = build.onnx("Div", gradient, places.written(own, theirs, "add"))
    d_data = build.onnx("Mul", own, share) if is_wanted(data) else None
    d_updates = None
    if is_wanted(updates):
        d_updates = build.onnx("Mul", theirs, places.read(share))
    return [d_data, None, d_updates]


def _of_products(
    op: OnnxOp, gradient: SSAValue, places: _WrittenPlaces, build: GradientBuilder
) -> Gradients:
    """
    Returns the gradients of a scatter that multiplies. Each factor gets dy times the
    product of the other factors, computed as the whole product divided by the factor.
    If exactly one update of a position is zero, the gradient of this update uses the
    product in which a one replaces the zero.
    """
    data, _, updates = op.operands
    d_data = d_updates = None
    zero, one = build.scalar(0, data), build.scalar(1, data)
    if is_wanted(data):
        factor = build.onnx("Where", build.onnx("Equal", data, zero), one, data)
        product = places.written(factor, updates, "mul")
        others = build.onnx("Div", product, factor)
        d_data = build.onnx("Mul", gradient, others)
    if is_wanted(updates):
        is_zero = build.onnx("Equal", updates, zero)
        none = zeros(shape(data), data, build)
        zeros_there = places.written(none, build.cast(is_zero, data), "add")
        is_only = build.onnx("Equal", places.read(zeros_there), one)
        is_only = build.onnx("And", is_zero, is_only)
        without = build.onnx("Where", is_only, one, updates)
        product = places.written(data, without, "mul")
        of_only = places.read(build.onnx("Mul", gradient, product))
        whole = places.read(build.onnx("Mul", gradient, op.results[0]))
        divisor = build.onnx("Where", is_zero, one, updates)
        quotient = build.onnx("Div", whole, divisor)
        d_updates = build.onnx("Where", is_only, of_only, quotient)
    return [d_data, None, d_updates]


@gradient_rule("onnx.TopK")
def top_k(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of TopK: the gradient of the values, written to the positions where
    TopK found the values. All other elements get zero.
    """
    gradient = gradients[0]
    if gradient is None:
        return [None, None]
    x = op.operands[0]
    dx = build.onnx(
        "ScatterElements",
        zeros(shape(x), x, build),
        op.results[1],
        gradient,
        axis=op.attribute("axis"),
    )
    return [dx, None]


@onnx_gradient("Trilu")
def triangle(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Trilu: the same triangle of dy."""
    dx = build.onnx("Trilu", dy, op.input(1), upper=op.attribute("upper"))
    return [dx]


@onnx_gradient("Gather")
def gather(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Gather: each slice of dy is added at the position where the slice
    was read. In an embedding, whose operands are a table and the indices of its rows,
    the rows of the gradient are split over devices like the rows of the table. If the
    indices are constant, the backward pass need not keep the operand for its shape.
    """
    data, indices = op.operands
    axis = op.attribute("axis")
    is_table = axis == 0 and direct_constant(indices) is None
    split_like = data if is_table else None
    grad = GatherGradOp(dy, indices, split_like, axis=axis, ddata=data.type)
    return [build.result(grad)]
