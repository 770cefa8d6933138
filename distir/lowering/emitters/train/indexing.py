"""Emitters of the gradients of look-ups, and of sums at places that indices name."""

from __future__ import annotations

from distir.dialects.train_ops.indexing import GatherGradOp, ScatterSumOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.gather_grad")
def gather_gradient(call: Call) -> str:
    assert isinstance(call.op, GatherGradOp)
    arguments = [*call.operands()[:2], repr(call.result_shape())]
    return call.like_op("indexing", [*arguments, repr(call.op.dimension)])


@torch_emitter("train.scatter_sum")
def scatter_sum(call: Call) -> str:
    assert isinstance(call.op, ScatterSumOp)
    how = (call.op.dimension, call.op.batch)
    arguments = [*call.operands(), repr(call.result_shape()), *map(repr, how)]
    return call.like_op("indexing", arguments)
