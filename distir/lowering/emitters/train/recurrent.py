"""Emitters of the gradients of recurrent layers."""

from __future__ import annotations

from distir.dialects.train_ops.recurrent import GruGradOp, RecurrentGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.rnn_grad", "train.gru_grad", "train.lstm_grad")
def recurrent_gradient(call: Call) -> str:
    op = call.op
    assert isinstance(op, RecurrentGradOp)
    given = [*call.operands(), f"direction={op.direction.data!r}"]
    given.append(f"batch_first={op.batch_first is not None}")
    if isinstance(op, GruGradOp):
        given.append(f"linear_before_reset={op.linear_before_reset is not None}")
    return call.like_op("recurrent", given)
