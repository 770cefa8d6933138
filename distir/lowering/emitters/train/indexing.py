"""Emitters of the gradients of look-ups."""

from __future__ import annotations

from distir.dialects.train_ops.indexing import GatherGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.gather_grad")
def gather_gradient(call: Call) -> str:
    assert isinstance(call.op, GatherGradOp)
    dy, indices = call.operands()[:2]
    helper = call.helper("indexing")
    shape = call.result_shape()
    return f"{helper}.gather_grad({dy}, {indices}, {shape!r}, {call.op.dimension})"
