"""Emitter of the gradient of resizing."""

from __future__ import annotations

from distir.dialects.train_ops.resize import ResizeGradOp
from distir.lowering.emitter import Call, torch_emitter
from distir.lowering.emitters.image import interpolation_mode


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
