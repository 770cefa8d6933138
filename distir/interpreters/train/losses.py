"""
Losses on arrays. Labels are checked before formulas are evaluated. The CTC loss sums
over all alignments with forward and backward variables.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from distir.dialects.train_ops.losses import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    CrossEntropySumOp,
    CtcLossGradOp,
    CtcLossOp,
    CtcOp,
    LabelLossOp,
)
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.op_costs import cost_function, lookup
from distir.interpreters.train.arithmetic import Array, computes
from distir.interpreters.train.formulas import evaluated
from distir.program import describe


def _check(op: LabelLossOp, count: int, labels: Array) -> None:
    """
    Raises DistIRError unless each label is below `count`, the number of classes, or
    ignored.
    """
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


def _read(op: CtcOp, targets: Array, count: int) -> Array:
    """
    Returns the `count` labels of a sample, with a blank before, between and after the
    labels.
    """
    found = np.full(2 * count + 1, op.blank.value.data, np.int64)
    found[1::2] = targets[:count]
    return found


def _variables(log_probs: Array, read: Array) -> Array:
    """
    Returns an array [steps, places] for the sequence `read` of labels and blanks.
    Element [t, p] is the logarithm of the probability of all paths that are at place p
    of the sequence in step t.
    """
    steps, places = len(log_probs), len(read)
    skips = np.zeros(places, bool)
    skips[2:] = read[2:] != read[:-2]
    skips[::2] = False  # blanks
    found = np.full((steps, places), -np.inf)
    if not steps:
        return found
    found[0, :2] = log_probs[0, read[:2]]
    for step in range(1, steps):
        before = found[step - 1]
        terms = [before, np.append(-np.inf, before[:-1])]
        terms.append(
            np.where(skips, np.append([-np.inf] * 2, before)[:places], -np.inf)
        )
        found[step] = reduce(np.logaddexp, terms) + log_probs[step, read]
    return found


def _loss(variables: Array) -> float:
    if not len(variables):
        return 0.0 if variables.shape[1] == 1 else np.inf
    return -float(np.logaddexp.reduce(variables[-1, -2:]))


@computes(CtcLossOp)
def loss(
    op: CtcLossOp, log_probs: Array, targets: Array, steps: Array, labels: Array
) -> Array:
    found = np.empty(len(steps), log_probs.dtype)
    for i, (count, size) in enumerate(zip(steps, labels, strict=True)):
        read = _read(op, targets[i], int(size))
        found[i] = _loss(_variables(log_probs[:count, i], read))
    return np.where(np.isinf(found), 0, found) if op.zero_infinity else found


@computes(CtcLossGradOp)
def loss_gradient(
    op: CtcLossGradOp,
    dlosses: Array,
    log_probs: Array,
    targets: Array,
    steps: Array,
    labels: Array,
) -> Array:
    found = np.zeros_like(log_probs)
    for i, (count, size) in enumerate(zip(steps, labels, strict=True)):
        own, read = log_probs[:count, i], _read(op, targets[i], int(size))
        ahead = _variables(own, read)
        behind = _variables(own[::-1], read[::-1])[::-1, ::-1]
        value = _loss(ahead)
        if np.isinf(value):
            found[:count, i] = 0 if op.zero_infinity else np.nan
            continue
        share = np.full_like(own, -np.inf)
        for place, label in enumerate(read):
            both = ahead[:, place] + behind[:, place]
            share[:, label] = np.logaddexp(share[:, label], both)
        found[:count, i] = (np.exp(own) - np.exp(share + value - own)) * dlosses[i]
    return found
