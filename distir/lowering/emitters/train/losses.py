"""Emitters of losses and their gradients."""

from __future__ import annotations

from distir.dialects.train_ops.loss_steps import CrossEntropySumOp
from distir.dialects.train_ops.losses import CrossEntropyOp, LabelLossOp
from distir.lowering.emitter import Call, torch_emitter, torch_templates


@torch_emitter(
    "train.cross_entropy",
    "train.cross_entropy_grad",
    "train.cross_entropy_part_grad",
    "train.cross_entropy_sum",
)
def loss_of_labels(call: Call) -> str:
    op = call.op
    assert isinstance(op, LabelLossOp)
    arguments = call.operands()
    if isinstance(op, CrossEntropySumOp):
        arguments.append(repr(op.count))
    arguments += [repr(op.factor), repr(op.ignored)]
    if isinstance(op, CrossEntropyOp):
        arguments.append(call.result_dtype())
    return call.like_op("losses", arguments)


torch_templates(
    {
        "logit_maximum": "logit_maximum({0}, {result:dtype})",
        "label_logit": "label_logit({0}, {1}, {result:dtype})",
        "exponential_sum": "exponential_sum({0}, {1})",
    },
    "train",
    module="losses",
)
