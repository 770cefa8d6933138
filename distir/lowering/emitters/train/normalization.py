"""Emitters of the gradients of normalisation layers."""

from __future__ import annotations

from distir.dialects.train_ops.normalization import NormGradOp
from distir.lowering.emitter import Call, torch_emitter


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
