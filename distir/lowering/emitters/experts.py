"""Emitters of mixtures of experts."""

from __future__ import annotations

from distir.dialects.train_ops.experts import (
    CombineOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedProductGradOp,
    rows_of,
)
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.expert_places")
def expert_places(call: Call) -> str:
    op = call.op
    assert isinstance(op, ExpertPlacesOp)
    shards, _, places = rows_of(op.rows)
    numbers = (op.experts.value.data, op.capacity.value.data, shards, places)
    return call.like_op("experts", [call.operand(0), *map(repr, numbers)])


def _weights(call: Call) -> str:
    return call.operand(3) if call.count > 3 else "None"


@torch_emitter("train.dispatch")
def dispatch(call: Call) -> str:
    assert isinstance(call.op, DispatchOp)
    return call.like_op("experts", [*call.operands()[:3], _weights(call)])


@torch_emitter("train.combine")
def combine(call: Call) -> str:
    assert isinstance(call.op, CombineOp)
    return call.like_op("experts", [*call.operands()[:2], _weights(call)])


@torch_emitter("train.grouped_product_grad")
def grouped_product_gradient(call: Call) -> str:
    op = call.op
    assert isinstance(op, GroupedProductGradOp)
    shape = call.result_shape()
    assert shape is not None
    experts = repr(shape[0])
    flag = repr(op.transposed is not None)
    return call.like_op("experts", [*call.operands(), experts, flag])
