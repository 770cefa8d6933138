"""
Emitters of normalisation layers in training, which keep their statistics, and of their
gradients.
"""

from __future__ import annotations

from distir.dialects.train_ops.normalization import LayerNormGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter(
    *("train.layer_norm", "train.rms_norm"),
    *("train.layer_norm_grad", "train.rms_norm_grad"),
)
def trained_normalization(call: Call) -> str:
    arguments = call.operands()
    if isinstance(call.op, LayerNormGradOp):
        if call.op.dbias is None:
            arguments.append("bias=False")
    elif not call.op.name.endswith("_grad"):
        arguments.append(f"epsilon={call.decimal('epsilon')}")
    return call.like_op("trained_normalization", arguments)
