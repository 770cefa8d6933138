"""Emitters of the statistics and gradients of batch normalisation."""

from __future__ import annotations

from distir.dialects.train_ops.batch_normalization import (
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
)
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.batch_norm_variance")
def variance(call: Call) -> str:
    assert isinstance(call.op, BatchNormVarianceOp)
    return (
        f"{call.helper('batch_norm_gradients')}.variance({', '.join(call.operands())}, "
        f"{call.op.count.value.data})"
    )


@torch_emitter("train.batch_norm_sums")
def sums(call: Call) -> str:
    assert isinstance(call.op, BatchNormSumsOp)
    return (
        f"{call.helper('batch_norm_gradients')}.sums({', '.join(call.operands())}, "
        f"{call.op.epsilon.value.data!r})"
    )


@torch_emitter("train.batch_norm_input_grad")
def input_gradient(call: Call) -> str:
    assert isinstance(call.op, BatchNormInputGradOp)
    return (
        f"{call.helper('batch_norm_gradients')}.input_grad({', '.join(call.operands())}, "
        f"{call.op.epsilon.value.data!r}, {call.op.count.value.data})"
    )
