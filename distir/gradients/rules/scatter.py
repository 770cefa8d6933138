"""Gradient rules of look-ups and scatters by elements, of TopK and of triangles."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.train_ops.indexing import ScatterSumOp
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
    shape,
)
from distir.gradients.rules.arithmetic import is_wanted
from distir.gradients.rules.shape import zeros
from distir.program import describe


@onnx_gradient("GatherElements")
def gather_elements(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Every element of the gradient is added where it was read."""
    data, indices = op.operands
    made = ScatterSumOp(dy, indices, axis=op.attribute("axis"), result=data.type)
    return [build.result(made)]


@onnx_gradient("GatherND")
def gather_nd(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Every slice of the gradient is added where it was read."""
    data, indices = op.operands
    count = op.attribute("batch_dims") or None
    made = ScatterSumOp(dy, indices, batch_dims=count, result=data.type)
    return [build.result(made)]


@onnx_gradient("ScatterElements", "ScatterND")
def scatter(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    The updates get the gradient at the positions where they were written, the data the
    gradient with zeros there (or all of it, if updates are added). Raises DistIRError for
    other reductions.
    """
    data, indices, updates = op.operands
    reduction = op.attribute("reduction")
    if reduction not in ("none", "add"):
        raise DistIRError(
            f"{describe(op)} has no gradient rule for reduction {reduction!r}; it has "
            "for 'none' and 'add'"
        )
    by_element = op.name == "onnx.ScatterElements"
    attributes = {"axis": op.attribute("axis")} if by_element else {}
    d_data = d_updates = None
    if is_wanted(data):
        d_data = gradient
        if reduction == "none":
            nothing = zeros(shape(updates), updates, build)
            name = "ScatterElements" if by_element else "ScatterND"
            d_data = build.onnx(name, gradient, indices, nothing, **attributes)
    if is_wanted(updates):
        name = "GatherElements" if by_element else "GatherND"
        d_updates = build.onnx(name, gradient, indices, **attributes)
    return [d_data, None, d_updates]


@gradient_rule("onnx.TopK")
def top_k(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The gradient of the values, written to the positions where these were found."""
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
    """The same triangle of the gradient."""
    dx = build.onnx("Trilu", dy, op.input(1), upper=op.attribute("upper"))
    return [dx]
