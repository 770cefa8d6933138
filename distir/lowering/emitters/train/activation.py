"""Emitters of the gradients of activation functions."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter, torch_templates

torch_templates(
    {
        "gelu_grad": "torch.ops.aten.gelu_backward({*}, approximate={approximate})",
        "relu_grad": "torch.ops.aten.threshold_backward({*}, 0)",
    },
    "train",
)


@torch_emitter("train.swish_grad")
def swish_gradient(call: Call) -> str:
    if call.attribute("alpha") == 1.0:
        return call.write("torch.ops.aten.silu_backward({0}, {1})")
    # With z = alpha * x, swish(x) = silu(z) / alpha: the slope at x is silu's at z.
    return call.write("torch.ops.aten.silu_backward({0}, {alpha} * {1})")
