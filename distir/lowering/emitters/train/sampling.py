"""Emitters of the gradients of sampling at the points of a grid."""

from __future__ import annotations

from distir.dialects.train_ops.sampling import (
    MODES,
    PADDINGS,
    GridSampleGradInputOp,
    GridSampleGradOp,
)
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.grid_sample_grad_input", "train.grid_sample_grad_grid")
def grid_sample_gradient(call: Call) -> str:
    """PyTorch's kernel computes either; of an image whose gradient it is, it reads the sizes."""
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
