"""Emitters of losses and their gradients."""

from __future__ import annotations

from distir.dialects.train_ops.loss_steps import CrossEntropySumOp
from distir.dialects.train_ops.losses import CrossEntropyOp, LabelLossOp
from distir.lowering.emitter import Call, torch_emitter


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
    return _call(call, arguments)


@torch_emitter("train.logit_maximum", "train.label_logit")
def per_label(call: Call) -> str:
    return _call(call, [*call.operands(), call.result_dtype()])


@torch_emitter("train.exponential_sum")
def exponential_sum(call: Call) -> str:
    return _call(call, call.operands())


def _call(call: Call, arguments: list[str]) -> str:
    name = call.op.name.removeprefix("train.")
    return f"{call.helper('losses')}.{name}({', '.join(arguments)})"
