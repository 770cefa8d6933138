"""Emitters of the gradients of activation functions."""

from __future__ import annotations

from distir.dialects.train_ops.activation import GeluGradOp, SwishGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.gelu_grad")
def gelu_gradient(call: Call) -> str:
    assert isinstance(call.op, GeluGradOp)
    return (
        f"torch.ops.aten.gelu_backward({', '.join(call.operands())}, "
        f"approximate={call.op.approximate.data!r})"
    )


@torch_emitter("train.swish_grad")
def swish_gradient(call: Call) -> str:
    assert isinstance(call.op, SwishGradOp)
    dy, x = call.operands()
    alpha = call.op.alpha.value.data
    if alpha == 1.0:
        return f"torch.ops.aten.silu_backward({dy}, {x})"
    # With z = alpha * x, swish(x) = silu(z) / alpha: the slope at x is silu's at z.
    return f"torch.ops.aten.silu_backward({dy}, {alpha!r} * {x})"
