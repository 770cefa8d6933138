"""Optimizers on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from distir.dialects.train_ops.optimizers import (
    AdamFamilyOp,
    AdamOp,
    AdamWOp,
    SgdOp,
    SquareSumOp,
    UpdateOp,
)
from distir.interpreters.train.arithmetic import Array, computes


def _settings(op: UpdateOp, given: Sequence[Array]) -> dict[str, float]:
    """
    Returns the hyper-parameters of an update; those that are operands have the given
    values.
    """
    names = op.given_settings
    return op.settings | {n: float(v) for n, v in zip(names, given, strict=True)}


@computes(AdamOp, AdamWOp)
def adam(op: AdamFamilyOp, *operands: Array) -> tuple[Array, ...]:
    parameter, gradient, exp_avg, exp_avg_sq, step, *given = operands
    gradient = gradient.astype(parameter.dtype)
    settings, time = _settings(op, given), int(step) + 1
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    beta1, beta2 = settings["beta1"], settings["beta2"]
    if isinstance(op, AdamWOp):
        parameter = parameter * (1 - rate * decay)
    else:
        gradient = gradient + decay * parameter
    exp_avg = exp_avg + (1 - beta1) * (gradient - exp_avg)
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient * gradient
    denominator = np.sqrt(exp_avg_sq) / sqrt(1 - beta2**time) + settings["epsilon"]
    parameter = parameter - rate / (1 - beta1**time) * exp_avg / denominator
    return parameter, exp_avg, exp_avg_sq


@computes(SgdOp)
def sgd(
    op: SgdOp, parameter: Array, gradient: Array, *others: Array
) -> tuple[Array, ...]:
    states = len(op.tensors) - 2
    buffers, settings = others[:states], _settings(op, others[states:])
    gradient = gradient.astype(parameter.dtype)
    gradient = gradient + settings["weight_decay"] * parameter
    if buffers:
        momentum = settings["momentum"]
        buffers = (momentum * buffers[0] + gradient,)
        ahead = momentum * buffers[0]
        gradient = buffers[0] if op.nesterov is None else gradient + ahead
    return parameter - settings["learning_rate"] * gradient, *buffers


@computes(SquareSumOp)
def square_sum(op: SquareSumOp, source: Array) -> Array:
    return np.square(source).sum()
