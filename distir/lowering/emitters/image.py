"""Emitters of ops that resample images, and of the selection of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distir.dialects.train_ops.resampling import (
    MODES,
    PADDINGS,
    GridSampleGradInputOp,
    GridSampleGradOp,
    ResizeGradOp,
)
from distir.lowering.emitter import Call, torch_emitter


def _floats(call: Call, index: int) -> str:
    """
    Returns an expression for the list of Python numbers in operand `index`, or the text
    `None` if the operand is omitted or empty.
    """
    known = call.constant(index)
    if known is not None:
        return repr([float(v) for v in known.reshape(-1)]) if known.size else "None"
    return f"{call.operand(index)}.tolist()" if call.has(index) else "None"


def _resize_options(call: Call) -> str | None:
    """
    Returns the mode and options of an `F.interpolate` call that computes exactly the
    same as the op, as keyword arguments, or None if there is no such call.
    """
    before, after = call.shape(), call.result_shape()
    if after is None or "FLOAT" not in call.element(0):
        return None
    scales: Any = call.constant(2)
    if scales is not None and scales.size:
        axes = call.attribute("axes") or list(range(len(before)))
        if any(
            float(s) * before[a] != after[a] for s, a in zip(scales, axes, strict=True)
        ):
            return None  # positions depend on more than the two sizes
    elif (
        call.constant(3) is None
        or call.attribute("keep_aspect_ratio_policy") != "stretch"
    ):
        return None
    mode = interpolation_mode(call, before, after)
    if mode is None or mode == "nearest":
        return mode and f"mode={mode!r}"
    corners = call.attribute("coordinate_transformation_mode") == "align_corners"
    return f"mode={mode!r}, align_corners={corners}"


def interpolation_mode(
    call: Call, before: Sequence[int], after: Sequence[int]
) -> str | None:
    """
    Returns the mode of `F.interpolate` that computes exactly the same as the op of
    `call`, or None if there is no such mode. `before` and `after` are the shapes of the
    image before and after the op. The sampled positions must depend on these shapes
    only.
    """
    if min(before) <= 0 or not 3 <= len(before) <= 5 or before[:2] != after[:2]:
        return None
    if call.attribute("antialias") or call.attribute("exclude_outside"):
        return None
    place = call.attribute("coordinate_transformation_mode")
    if call.attribute("mode") == "linear":
        if place not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
            return None
        if place == "align_corners" and 1 in after[2:]:
            return None
        return {3: "linear", 4: "bilinear", 5: "trilinear"}[len(before)]
    whole = all(b % a == 0 for a, b in zip(before, after, strict=True))
    known = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    is_nearest = call.attribute("mode") == "nearest" and whole
    if is_nearest and (place, call.attribute("nearest_mode")) in known:
        return "nearest"
    return None


@torch_emitter("onnx.Resize")
def resize(call: Call) -> str:
    plain = _resize_options(call)
    if plain is not None:
        shape = call.result_shape()
        assert shape is not None
        return f"F.interpolate({call.operand(0)}, {shape[2:]!r}, {plain})"
    options = {
        "mode": call.attribute("mode"),
        "place": call.attribute("coordinate_transformation_mode"),
        "rounding": call.attribute("nearest_mode"),
        "antialias": bool(call.attribute("antialias")),
        "cubic": call.attribute("cubic_coeff_a"),
        "exclude_outside": bool(call.attribute("exclude_outside")),
        "outside": call.attribute("extrapolation_value"),
        "policy": call.attribute("keep_aspect_ratio_policy"),
        "axes": call.attribute("axes"),
    }
    written = ", ".join(f"{name}={value!r}" for name, value in options.items())
    lists = ", ".join(_floats(call, i) for i in (1, 2, 3))
    return call.write("resize({0}, {given})", "images", given=f"{lists}, {written}")


@torch_emitter("onnx.GridSample")
def grid_sample(call: Call) -> str:
    mode = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}[
        call.attribute("mode")
    ]
    if mode == "bicubic" and call.rank() != 4:
        raise call.fail("cubic sampling of volumes")
    return call.write(
        "F.grid_sample({0}, {1}, {kind}, {padding_mode}, align_corners={align_corners:flag})",
        kind=repr(mode),
    )


@torch_emitter("onnx.NonMaxSuppression")
def non_max_suppression(call: Call) -> str:
    count = call.integer(2) if call.has(2) else "0"
    overlap = call.number(3) if call.has(3) else "0.0"
    score = call.number(4) if call.has(4) else "None"
    return call.write(
        "non_max_suppression({0}, {1}, {limits}, centers={center_point_box:flag})",
        "images",
        limits=f"{count}, {overlap}, {score}",
    )


@torch_emitter("onnx.RoiAlign")
def roi_align(call: Call) -> str:
    half_pixel = call.attribute("coordinate_transformation_mode") == "half_pixel"
    return call.write(
        "roi_align({*}, size=({output_height}, {output_width}), samples={sampling_ratio}, "
        "scale={spatial_scale}, mode={mode}, half_pixel={half_pixel})",
        "images",
        half_pixel=repr(half_pixel),
    )


@torch_emitter("onnx.DeformConv")
def deform_conv(call: Call) -> str:
    n = call.rank() - 2
    if n != 2:
        raise call.fail(f"{n} spatial dimensions")
    pads = call.attribute("pads") or [0] * 4
    return call.write(
        "deform_conv({0}, {1}, {2}, {3}, {4}, strides={steps}, before={before}, "
        "dilations={spacing}, groups={group}, offset_groups={offset_group})",
        "images",
        steps=repr(list(call.attribute("strides") or [1, 1])),
        before=repr(list(pads[:2])),
        spacing=repr(list(call.attribute("dilations") or [1, 1])),
    )


@torch_emitter("train.resize_grad")
def resize_gradient(call: Call) -> str:
    op = call.op
    assert isinstance(op, ResizeGradOp)
    before, after = call.result_shape(), call.shape()
    assert before is not None
    is_plain = all(
        a * s == b for a, b, s in zip(before, after, op.factors, strict=True)
    )
    mode = interpolation_mode(call, before, after) if is_plain else None
    if mode is not None:
        rank = len(before) - 2
        kernel = f"{mode}{rank}d" if mode == "nearest" or rank > 1 else "linear1d"
        given = [call.operand(0), repr(after[2:]), repr(before)]
        if mode != "nearest":
            place = call.attribute("coordinate_transformation_mode")
            given.append(repr(place == "align_corners"))
        return f"torch.ops.aten.upsample_{kernel}_backward({', '.join(given)})"
    options = {
        "mode": call.attribute("mode"),
        "place": call.attribute("coordinate_transformation_mode"),
        "rounding": call.attribute("nearest_mode"),
        "antialias": op.antialias is not None,
        "cubic": call.attribute("cubic_coeff_a"),
        "exclude_outside": op.exclude_outside is not None,
    }
    given = [call.operand(0), repr(before), repr(op.factors)]
    given += [f"{name}={value!r}" for name, value in options.items()]
    return call.like_op("images", given)


@torch_emitter("train.grid_sample_grad_input", "train.grid_sample_grad_grid")
def grid_sample_gradient(call: Call) -> str:
    """
    Returns a call of PyTorch's kernel for the gradient of the image or of the grid. For
    the gradient of the image, the kernel gets the image's shape in place of the image.
    """
    op = call.op
    assert isinstance(op, GridSampleGradOp)
    arguments = call.operands()
    of_image = isinstance(op, GridSampleGradInputOp)
    if of_image:
        arguments.insert(1, repr(call.result_shape()))
    options = (
        MODES.index(op.mode.data),
        PADDINGS.index(op.padding_mode.data),
        op.align_corners is not None,
    )
    return call.like_op("sampling", [*arguments, *map(repr, options)])
