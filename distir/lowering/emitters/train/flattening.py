"""Emitters of flattening."""

from __future__ import annotations

from distir.dialects.train_ops.flattening import FlattenOp, UnflattenOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.flatten")
def flatten(call: Call) -> str:
    assert isinstance(call.op, FlattenOp)
    shape = call.result_shape()
    assert shape is not None
    given = [call.operand(0), repr(shape[0]), *_parts(call.op)]
    return call.like_op("flattening", given)


@torch_emitter("train.unflatten")
def unflatten(call: Call) -> str:
    assert isinstance(call.op, UnflattenOp)
    given = [call.operand(0), repr(call.result_shape()), *_parts(call.op)]
    return call.like_op("flattening", given)


def _parts(op: FlattenOp | UnflattenOp) -> list[str]:
    """Returns the argument for the blocks, if there are any."""
    parts = tuple(tuple(split) for split in op.parts)
    return [repr(parts)] if parts else []
