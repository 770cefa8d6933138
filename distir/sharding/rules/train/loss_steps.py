"""Rules and local forms of the steps of a cross-entropy whose classes are split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, TensorType, i1, i64
from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.loss_steps import (
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    ExponentialSumOp,
    LabelLogitOp,
    LogitMaximumOp,
)
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule
from distir.sharding.rules.indexing import locate
from distir.sharding.rules.local_builder import LocalBuilder

ELSEWHERE, IGNORED = -1, -2
"""
What stands, in a local form, for a label that another device holds, and for one that is
ignored.
"""


@train_rule("logit_maximum", "exponential_sum", "label_logit")
def per_label(op: LogitMaximumOp | ExponentialSumOp | LabelLogitOp) -> Rule:
    """
    The rule of the steps that give one number per label: they leave partial maxima, or
    partial sums. To the sum of the label's own logit each device adds those of labels among
    its classes.
    """
    builder = RuleBuilder(op)
    *places, count = shape_of(op.logits)
    monoid = "max" if isinstance(op, LogitMaximumOp) else "sum"
    labels, classes = (
        builder.factors(places),
        builder.factor(count, "reduction", monoid),
    )
    linear = [(0,)] if isinstance(op, LabelLogitOp) else []
    return builder.rule([(*labels, classes), labels], [labels], linear=linear)


@train_rule("cross_entropy_sum")
def cross_entropy_sum(op: CrossEntropySumOp) -> Rule:
    """The rule of the sum over labels, which leaves partial sums."""
    builder = RuleBuilder(op)
    labels = builder.factors(shape_of(op.maximum), "reduction")
    return builder.rule([labels] * 4, [()])


@train_rule("cross_entropy_part_grad")
def cross_entropy_part_gradient(op: CrossEntropyPartGradOp) -> Rule:
    """
    The rule of the gradient of a cross-entropy in steps: labels and classes are parallel.
    Linear in the incoming gradient.
    """
    builder = RuleBuilder(op)
    *places, count = shape_of(op.logits)
    labels, classes = builder.factors(places), builder.factor(count)
    logits = (*labels, classes)
    return builder.rule([(), logits, labels, labels, labels], [logits], linear=[(0,)])


def _local_labels(
    context: LocalContext, classes: int, labels: SSAValue, ignored: int | None
) -> tuple[LocalBuilder, SSAValue]:
    """
    Returns the labels as indices into this device's classes, with the builder of the ops
    that compute them.
    """
    builder = LocalBuilder(context)
    _, local = locate(builder, classes, labels, from_end=False, elsewhere=ELSEWHERE)
    if ignored is not None:
        sizes = shape_of(labels)
        number = np.array(ignored, numpy_dtype(element_type(labels)))
        operands = [labels, builder.constant(number)]
        equal = builder.emit("Equal", operands, TensorType(i1, sizes))
        operands = [equal, builder.constant(np.array(IGNORED, np.int64)), local]
        local = builder.emit("Where", operands, TensorType(i64, sizes))
    return builder, local


def _split_classes(context: LocalContext, logits: int) -> int | None:
    """Returns the factor of the classes, if they are split here."""
    (classes,) = context.rule.operands[logits][-1] or (None,)
    if classes is None or context.parts_of(classes) == 1:
        return None
    return classes


@local_form("train.label_logit")
def label_logit_held(context: LocalContext) -> Sequence[Operation]:
    """
    The local form of the look-up of each label's own logit, among this device's classes.
    """
    classes = _split_classes(context, 0)
    if classes is None:
        return [context.same_op()]
    logits, labels = context.operands
    builder, local = _local_labels(context, classes, labels, None)
    return [*builder.ops, context.same_op([logits, local])]


@local_form("train.cross_entropy_part_grad")
def gradient_held(context: LocalContext) -> Sequence[Operation]:
    """
    The local form of the gradient: subtracts 1 at the labels among this device's classes.
    """
    op = context.op
    assert isinstance(op, CrossEntropyPartGradOp)
    classes = _split_classes(context, 1)
    if classes is None:
        return [context.same_op()]
    dloss, logits, labels, *statistics = context.operands
    builder, local = _local_labels(context, classes, labels, op.ignored)
    gradient = context.same_op([dloss, logits, local, *statistics])
    if op.ignored is not None:
        gradient.properties["ignore_index"] = IntegerAttr(IGNORED, i64)
    return [*builder.ops, gradient]
