"""Emitters of the gradients of normalisation layers."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.layer_norm_grad", "train.rms_norm_grad")
def normalization_gradient(call: Call) -> str:
    arguments = [*call.operands(), repr(call.attribute("epsilon"))]
    if call.op.name == "train.layer_norm_grad":
        arguments.append(f"bias={len(call.op.results) > 2}")
    return call.like_op("normalization_gradients", arguments)
