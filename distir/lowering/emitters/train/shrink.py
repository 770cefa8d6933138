"""Emitter of the gradient of shrinkage."""

from __future__ import annotations

from distir.dialects.train_ops.shrink import ShrinkGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.shrink_grad")
def shrink_gradient(call: Call) -> str:
    assert isinstance(call.op, ShrinkGradOp)
    operands = ", ".join(call.operands())
    return (
        f"torch.ops.aten.hardshrink_backward({operands}, {call.op.lambd.value.data!r})"
    )
