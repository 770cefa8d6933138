"""The gradient rule of sampling at the points of a grid."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.sampling import (
    GridSampleGradGridOp,
    GridSampleGradInputOp,
)
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient
from distir.gradients.rules.arithmetic import is_wanted


@onnx_gradient("GridSample")
def grid_sample(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """One kernel for the images and one for the grid."""
    x, grid = op.operands
    options = {
        "mode": op.attribute("mode"),
        "padding_mode": op.attribute("padding_mode"),
        "align_corners": bool(op.attribute("align_corners")),
    }
    dx = dgrid = None
    if is_wanted(x):
        dx = build.result(GridSampleGradInputOp(dy, grid, dx=x.type, **options))
    if is_wanted(grid):
        dgrid = build.result(GridSampleGradGridOp(dy, x, grid, **options))
    return [dx, dgrid]
