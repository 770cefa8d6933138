"""Gradient rules of resizing, and of sampling at the points of a grid."""

from __future__ import annotations

from xdsl.dialects.builtin import DenseArrayBase, f64
from xdsl.ir import SSAValue

from distir.dialects.constants import constant_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.resampling import (
    GridSampleGradGridOp,
    GridSampleGradInputOp,
    ResizeGradOp,
)
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient, shape
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe

_ATTRIBUTES = (
    *("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a"),
    *("antialias", "exclude_outside"),
)


@onnx_gradient("Resize")
def resize(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Resize. Because Resize is linear, the backward pass needs only the
    shape of the input. Raises DistIRError if the op uses an option for which there is
    no gradient.
    """
    given = {name: op.attribute(name) for name in _ATTRIBUTES}
    if given["coordinate_transformation_mode"] == "tf_crop_and_resize":
        raise DistIRError(
            f"{describe(op)} has no gradient: it crops (coordinate_transformation_mode "
            f'= "tf_crop_and_resize"); slice what it resizes instead'
        )
    for name in ("antialias", "exclude_outside"):
        given[name] = bool(given[name])
    x = op.operands[0]
    scales = DenseArrayBase.from_list(f64, _scales(op, x))
    return [build.result(ResizeGradOp(dy, dx=x.type, scales=scales, **given))]


def _scales(op: OnnxOp, x: SSAValue) -> list[float]:
    """
    Returns the scale of every dimension. Raises DistIRError if the program computes the
    scales, or if the op adjusts its sizes to keep their ratio.
    """
    before, after = shape(x), shape(op.results[0])
    found = [1.0] * len(before)
    axes = [a % len(before) for a in op.attribute("axes") or range(len(before))]
    value = op.input(2)
    if value is None:
        if op.attribute("keep_aspect_ratio_policy") != "stretch":
            raise DistIRError(
                f"{describe(op)} has no gradient: it keeps the ratio of its sizes "
                f"(keep_aspect_ratio_policy); give it scales instead"
            )
        for axis in axes:
            found[axis] = after[axis] / before[axis]
        return found
    scales = constant_of(value)
    if scales is None:
        raise DistIRError(
            f"{describe(op)} has no gradient: its scales are computed when the program "
            f"runs; run fold-shapes first"
        )
    for axis, scale in zip(axes, scales, strict=True):
        found[axis] = float(scale)
    return found


@onnx_gradient("GridSample")
def grid_sample(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of GridSample: one kernel for the gradient of the images and one for
    the gradient of the grid.
    """
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
