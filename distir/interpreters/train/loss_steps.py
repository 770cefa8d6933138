"""The steps of a cross-entropy whose classes are split, on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.train_ops.checks import accumulation_type
from distir.dialects.train_ops.loss_steps import (
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    ExponentialSumOp,
    LabelLogitOp,
    LogitMaximumOp,
)
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.simulator.costs.op_costs import cost_function, lookup, op_class
from distir.interpreters.train.arithmetic import Array
from distir.interpreters.train.losses import labels_that_count


def _among(labels: Array, classes: int) -> tuple[Array, Array]:
    """Which labels are classes held here, and the labels with 0 for the others."""
    held = (labels >= 0) & (labels < classes)
    return held, np.where(held, labels, 0)[..., None]


@register_reference_implementations
@register_impls
class LossSteps(InterpreterFunctions):
    """What `train.cross_entropy` and its gradient decompose into."""

    @impl(LogitMaximumOp)
    def maximum(
        self, interpreter: Interpreter, op: LogitMaximumOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dtype = numpy_dtype(accumulation_type(op.logits))
        return (args[0].max(-1, initial=-np.inf).astype(dtype),)

    @impl(ExponentialSumOp)
    def total(
        self, interpreter: Interpreter, op: ExponentialSumOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        logits, maximum = args
        shifted = logits.astype(maximum.dtype) - maximum[..., None]
        return (np.asarray(np.exp(shifted).sum(-1)),)

    @impl(LabelLogitOp)
    def chosen(
        self, interpreter: Interpreter, op: LabelLogitOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        logits, labels = args
        held, classes = _among(labels, logits.shape[-1])
        found = np.take_along_axis(logits, classes, -1)[..., 0]
        dtype = numpy_dtype(accumulation_type(op.logits))
        return (np.where(held, found, 0).astype(dtype),)

    @impl(CrossEntropySumOp)
    def loss(
        self, interpreter: Interpreter, op: CrossEntropySumOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        maximum, total, chosen, labels = args
        kept, _ = labels_that_count(op, op.count, labels)
        each = np.where(kept, np.log(total) - (chosen - maximum), 0)
        return (np.asarray(each.sum() * op.factor, maximum.dtype),)

    @impl(CrossEntropyPartGradOp)
    def gradient(
        self,
        interpreter: Interpreter,
        op: CrossEntropyPartGradOp,
        args: tuple[Any, ...],
    ) -> tuple[Array, ...]:
        dloss, logits, labels, maximum, total = args
        held, classes = _among(labels, logits.shape[-1])
        shifted = logits.astype(dloss.dtype) - maximum[..., None]
        dlogits = np.exp(shifted) / total[..., None]
        chosen = np.take_along_axis(dlogits, classes, -1)
        np.put_along_axis(dlogits, classes, chosen - held[..., None], -1)
        kept = (
            np.ones(labels.shape, bool) if op.ignored is None else labels != op.ignored
        )
        dlogits *= kept[..., None] * (dloss * op.factor)
        return (dlogits.astype(logits.dtype),)


cost_function("train.label_logit")(lookup)
op_class("gather", "train.label_logit")
op_class("loss", "train.cross_entropy_part_grad", "train.exponential_sum")
