"""Emitters of the gradients of softmax, normalisation layers and activations."""

from __future__ import annotations

from distir.dialects.train_ops.activation import GeluGradOp, SwishGradOp
from distir.dialects.train_ops.normalization import NormGradOp
from distir.dialects.train_ops.softmax import SoftmaxFamilyGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.softmax_grad", "train.log_softmax_grad")
def softmax_gradient(call: Call) -> str:
    assert isinstance(call.op, SoftmaxFamilyGradOp)
    log = "_log" if call.op.name == "train.log_softmax_grad" else ""
    dy, y = call.operands()
    return (
        f"torch.ops.aten.{log}_softmax_backward_data({dy}, {y}, {call.op.dimension}, "
        f"{y}.dtype)"
    )


@torch_emitter("train.layer_norm_grad", "train.rms_norm_grad")
def normalization_gradient(call: Call) -> str:
    assert isinstance(call.op, NormGradOp)
    helper = call.helper("normalization_gradients")
    function = call.op.name.removeprefix("train.")
    bias = f", bias={len(call.op.results) > 2}" if function == "layer_norm_grad" else ""
    return (
        f"{helper}.{function}({', '.join(call.operands())}, "
        f"{call.op.epsilon.value.data!r}{bias})"
    )


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
