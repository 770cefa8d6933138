"""Optimizers on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.train_ops.checks import accumulation_type
from distir.dialects.train_ops.optimizers import (
    AdamFamilyOp,
    AdamOp,
    AdamWOp,
    SgdOp,
    SquareSumOp,
)
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.simulator.costs.op_costs import op_class
from distir.interpreters.train.arithmetic import Array, widen


def _narrowed(results: Sequence[Array], like: Array) -> tuple[Array, ...]:
    return tuple(np.asarray(r).astype(like.dtype) for r in results)


def _adam(
    op: AdamFamilyOp, args: Sequence[Array], decoupled: bool
) -> tuple[Array, ...]:
    parameter, _, exp_avg, exp_avg_sq = (widen(a) for a in args[:4])
    gradient = args[1].astype(parameter.dtype)
    settings, time = op.settings, int(args[4]) + 1
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    beta1, beta2 = settings["beta1"], settings["beta2"]
    if decoupled:
        parameter = parameter * (1 - rate * decay)
    else:
        gradient = gradient + decay * parameter
    exp_avg = exp_avg + (1 - beta1) * (gradient - exp_avg)
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient * gradient
    denominator = np.sqrt(exp_avg_sq) / sqrt(1 - beta2**time) + settings["epsilon"]
    parameter = parameter - rate / (1 - beta1**time) * exp_avg / denominator
    return _narrowed([parameter, exp_avg, exp_avg_sq], args[0])


@register_reference_implementations
@register_impls
class Optimizers(InterpreterFunctions):
    """`train.sgd`, `train.adam`, `train.adamw` and `train.square_sum`."""

    @impl(SgdOp)
    def sgd(
        self, interpreter: Interpreter, op: SgdOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        parameter, settings = widen(args[0]), op.settings
        gradient = args[1].astype(parameter.dtype)
        gradient = gradient + settings["weight_decay"] * parameter
        buffers: list[Array] = []
        if op.buffer is not None:
            momentum = settings["momentum"]
            buffer = momentum * widen(args[2]) + gradient
            buffers.append(buffer)
            gradient = buffer if op.nesterov is None else gradient + momentum * buffer
        parameter = parameter - settings["learning_rate"] * gradient
        return _narrowed([parameter, *buffers], args[0])

    @impl(AdamOp)
    def adam(
        self, interpreter: Interpreter, op: AdamOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        return _adam(op, args, decoupled=False)

    @impl(AdamWOp)
    def adamw(
        self, interpreter: Interpreter, op: AdamWOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        return _adam(op, args, decoupled=True)

    @impl(SquareSumOp)
    def square_sum(
        self, interpreter: Interpreter, op: SquareSumOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dtype = numpy_dtype(accumulation_type(op.source))
        return (np.asarray(np.square(args[0].astype(dtype)).sum(), dtype),)


op_class("optimizer", "train.adam", "train.adamw", "train.sgd")
