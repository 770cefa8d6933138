"""Losses of integer labels on arrays: labels are checked before their formulas apply."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.loss_steps import CrossEntropySumOp
from distir.dialects.train_ops.losses import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    LabelLossOp,
)
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.op_costs import cost_function, lookup
from distir.interpreters.train.arithmetic import Array, computes
from distir.interpreters.train.formulas import evaluated
from distir.program import describe


def _check(op: LabelLossOp, count: int, labels: Array) -> None:
    """Raises DistIRError for a label that counts and is none of `count` classes."""
    kept = np.ones(labels.shape, bool) if op.ignored is None else labels != op.ignored
    wrong = kept & ((labels < 0) | (labels >= count))
    if wrong.any():
        raise DistIRError(
            f"{describe(op)}: label {labels[wrong].flat[0]} is none of the "
            f"{count} classes; set ignore_index if it marks padding"
        )


@computes(CrossEntropyOp, CrossEntropyGradOp)
def cross_entropy(
    op: CrossEntropyOp | CrossEntropyGradOp, *operands: Array
) -> tuple[Array, ...]:
    logits, labels = operands[-2:]
    _check(op, logits.shape[-1], labels)
    return evaluated(op, *operands)


@computes(CrossEntropySumOp)
def sum_of_losses(op: CrossEntropySumOp, *operands: Array) -> tuple[Array, ...]:
    _check(op, op.count, operands[-1])
    return evaluated(op, *operands)


cost_function("train.label_logit")(lookup)
