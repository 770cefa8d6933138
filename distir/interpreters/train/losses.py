"""Losses of integer labels and their gradients on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.losses import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    LabelLossOp,
)
from distir.errors import DistIRError
from distir.interpreters.train.arithmetic import Array, computes
from distir.program import describe


def labels_that_count(
    op: LabelLossOp, count: int, labels: Array
) -> tuple[Array, Array]:
    """
    Returns which labels count, and the labels with 0 for the others. Raises DistIRError for
    a label that is none of `count` classes.
    """
    kept = np.ones(labels.shape, bool) if op.ignored is None else labels != op.ignored
    classes = np.where(kept, labels, 0)
    wrong = (classes < 0) | (classes >= count)
    if wrong.any():
        raise DistIRError(
            f"{describe(op)}: label {labels[wrong].flat[0]} is none of the "
            f"{count} classes; set ignore_index if it marks padding"
        )
    return kept, classes[..., None]


def _exponentials(logits: Array) -> tuple[Array, Array]:
    """Returns the logits less their maximum, and the exponentials of that."""
    shifted = logits - logits.max(-1, keepdims=True, initial=-np.inf)
    return shifted, np.exp(shifted)


@computes(CrossEntropyOp)
def cross_entropy(op: CrossEntropyOp, logits: Array, labels: Array) -> Array:
    kept, classes = labels_that_count(op, logits.shape[-1], labels)
    shifted, exponentials = _exponentials(logits)
    chosen = np.take_along_axis(shifted, classes, -1)[..., 0]
    each = np.where(kept, np.log(exponentials.sum(-1)) - chosen, 0)
    return each.sum() * op.factor


@computes(CrossEntropyGradOp)
def cross_entropy_gradient(
    op: CrossEntropyGradOp, dloss: Array, logits: Array, labels: Array
) -> Array:
    kept, classes = labels_that_count(op, logits.shape[-1], labels)
    _, exponentials = _exponentials(logits)
    dlogits = exponentials / exponentials.sum(-1, keepdims=True)
    chosen = np.take_along_axis(dlogits, classes, -1)
    np.put_along_axis(dlogits, classes, chosen - 1, -1)
    return dlogits * (kept[..., None] * (dloss * op.factor))
