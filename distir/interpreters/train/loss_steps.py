"""The steps of a cross-entropy whose classes are split, on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.loss_steps import (
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    ExponentialSumOp,
    LabelLogitOp,
    LogitMaximumOp,
)
from distir.interpreters.simulator.costs.op_costs import cost_function, lookup
from distir.interpreters.train.arithmetic import Array, computes
from distir.interpreters.train.losses import labels_that_count


def _among(labels: Array, classes: int) -> tuple[Array, Array]:
    """
    Returns which labels are among the classes held here, and the labels with 0 for the
    others.
    """
    held = (labels >= 0) & (labels < classes)
    return held, np.where(held, labels, 0)[..., None]


@computes(LogitMaximumOp)
def maximum(op: LogitMaximumOp, logits: Array) -> Array:
    return logits.max(-1, initial=-np.inf)


@computes(ExponentialSumOp)
def total(op: ExponentialSumOp, logits: Array, maximum: Array) -> Array:
    return np.exp(logits - maximum[..., None]).sum(-1)


@computes(LabelLogitOp)
def chosen(op: LabelLogitOp, logits: Array, labels: Array) -> Array:
    held, classes = _among(labels, logits.shape[-1])
    found = np.take_along_axis(logits, classes, -1)[..., 0]
    return np.where(held, found, 0)


@computes(CrossEntropySumOp)
def loss(op: CrossEntropySumOp, *operands: Array) -> Array:
    maximum, total, chosen, labels = operands
    kept, _ = labels_that_count(op, op.count, labels)
    each = np.where(kept, np.log(total) - (chosen - maximum), 0)
    return each.sum() * op.factor


@computes(CrossEntropyPartGradOp)
def part_gradient(op: CrossEntropyPartGradOp, *operands: Array) -> Array:
    dloss, logits, labels, maximum, total = operands
    held, classes = _among(labels, logits.shape[-1])
    dlogits = np.exp(logits - maximum[..., None]) / total[..., None]
    chosen = np.take_along_axis(dlogits, classes, -1)
    np.put_along_axis(dlogits, classes, chosen - held[..., None], -1)
    kept = np.ones(labels.shape, bool) if op.ignored is None else labels != op.ignored
    return dlogits * (kept[..., None] * (dloss * op.factor))


cost_function("train.label_logit")(lookup)
