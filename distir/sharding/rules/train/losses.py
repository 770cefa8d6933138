"""
The steps of cross-entropies whose classes are split: the decompositions into them, and their
local forms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, TensorType, i1, i64
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist_attributes import ENTRIES
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.loss_steps import (
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    ExponentialSumOp,
    LabelLogitOp,
    LogitMaximumOp,
)
from distir.dialects.train_ops.losses import CrossEntropyGradOp, CrossEntropyOp
from distir.sharding.decompose import decomposition, in_scope_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rules.indexing import locate
from distir.sharding.rules.local_builder import LocalBuilder


@decomposition("train.cross_entropy")
def loss_in_steps(op: Operation) -> list[Operation]:
    """
    Decomposes a cross-entropy: the maximum and the sum of exponentials of each label's
    logits, its own logit, and the sum over labels.
    """
    assert isinstance(op, CrossEntropyOp)
    maximum = LogitMaximumOp(op.logits)
    total = ExponentialSumOp(op.logits, maximum.maximum)
    chosen = LabelLogitOp(op.logits, op.labels)
    loss = CrossEntropySumOp(
        *(maximum.maximum, total.total, chosen.chosen, op.labels),
        classes=ENTRIES.of(op.attributes) or shape_of(op.logits)[-1],
        **op.properties,
    )
    return in_scope_of(op, [maximum, total, chosen, loss])


@decomposition("train.cross_entropy_grad")
def gradient_in_steps(op: Operation) -> list[Operation]:
    """
    Decomposes its gradient: the softmax and the label of each class, given maximum and sum,
    which the loss has computed.
    """
    assert isinstance(op, CrossEntropyGradOp)
    maximum = LogitMaximumOp(op.logits)
    total = ExponentialSumOp(op.logits, maximum.maximum)
    gradient = CrossEntropyPartGradOp(
        *(op.dloss, op.logits, op.labels, maximum.maximum, total.total),
        **op.properties,
    )
    return in_scope_of(op, [maximum, total, gradient])


ELSEWHERE, IGNORED = -1, -2
"""
What stands, in a local form, for a label that another device holds, and for one that is
ignored.
"""


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
