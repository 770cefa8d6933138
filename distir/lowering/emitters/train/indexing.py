"""Emitters of the gradients of look-ups."""

from __future__ import annotations

from distir.dialects.train_ops.indexing import GatherGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.gather_grad")
def gather_gradient(call: Call) -> str:
    assert isinstance(call.op, GatherGradOp)
    arguments = [*call.operands()[:2], repr(call.result_shape())]
    return call.like_op("indexing", [*arguments, repr(call.op.dimension)])
