"""Emitter of the gradients of softmax and its logarithm."""

from __future__ import annotations

from distir.dialects.train_ops.softmax import SoftmaxFamilyGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.softmax_grad", "train.log_softmax_grad")
def softmax_gradient(call: Call) -> str:
    assert isinstance(call.op, SoftmaxFamilyGradOp)
    log = "_log" if call.op.name == "train.log_softmax_grad" else ""
    template = (
        f"torch.ops.aten.{log}_softmax_backward_data({{*}}, {{axis}}, {{1}}.dtype)"
    )
    return call.write(template, axis=repr(call.op.dimension))
