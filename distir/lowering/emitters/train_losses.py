"""Emitters of losses and their gradients."""

from __future__ import annotations

from distir.dialects.train_ops.losses import CrossEntropyOp, LabelLossOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.cross_entropy", "train.cross_entropy_grad")
def cross_entropy(call: Call) -> str:
    op = call.op
    assert isinstance(op, LabelLossOp)
    arguments = [*call.operands(), repr(op.factor), repr(op.ignored)]
    if isinstance(op, CrossEntropyOp):
        arguments.append(call.result_dtype())
    name = op.name.removeprefix("train.")
    return f"{call.helper('losses')}.{name}({', '.join(arguments)})"
