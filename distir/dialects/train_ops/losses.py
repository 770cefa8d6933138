"""Losses of integer labels and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, differs, exp, log, one_hot, where
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import I64, FormulaOp, Types, total_of
from distir.dialects.train_ops.checks import check_float, check_integers, check_shape


def check_logits(op: Operation, logits: SSAValue) -> None:
    """Raises VerifyException unless a tensor holds floats and has a last dimension."""
    if not shape_of(logits):
        raise VerifyException(f"{op.name}: logits need a dimension of classes")
    check_float(op, "logits", logits)


def total_loss(
    each: Expr, labels: Expr, divisor: int, ignore_index: int | None
) -> Expr:
    """Returns the sum of the losses of labels that count, divided."""
    # No label is -1: without one that is ignored all count.
    counts = differs(labels, -1 if ignore_index is None else ignore_index)
    return where(counts, each, 0).sum() * (1.0 / divisor)


def label_weight(
    dloss: Expr, labels: Expr, divisor: int, ignore_index: int | None
) -> Expr:
    """Returns the gradient of the loss of each label, [..., 1], or of all of them, []."""
    weight = dloss * (1.0 / divisor)
    if ignore_index is None:
        return weight
    return differs(labels, ignore_index).expanded(-1) * weight


def _classes(labels: Expr, ignore_index: int | None) -> Expr:
    """Returns the labels with 0 for those that are ignored."""
    if ignore_index is None:
        return labels
    return where(differs(labels, ignore_index), labels, 0)


class LabelLossOp(FormulaOp):
    """
    Base of losses of labels and of their gradients: an operand `labels`, a divisor and
    a label that is ignored.
    """

    TORCH: ClassVar[str] = "{op}({*}, {op.factor}, {op.ignored})"
    TORCH_MODULE: ClassVar[str] = "losses"

    divisor = opt_prop_def(I64)
    ignore_index = opt_prop_def(I64)

    @property
    def factor(self) -> float:
        """The factor of the sum of losses: `1 / divisor`."""
        return 1.0 if self.divisor is None else 1.0 / self.divisor.value.data

    @property
    def ignored(self) -> int | None:
        """The label that does not count, if any."""
        return None if self.ignore_index is None else self.ignore_index.value.data

    def _verify(self, logits: SSAValue, labels: SSAValue) -> None:
        check_logits(self, logits)
        self._verify_labels(labels, shape_of(logits)[:-1])
        super().verify_()

    def _verify_labels(self, labels: SSAValue, expected: Sequence[int]) -> None:
        check_integers(self, "labels", labels)
        check_shape(self, "labels", labels, expected)
        if self.divisor is not None and self.divisor.value.data < 1:
            raise VerifyException(f"{self.name}: divisor must be positive")


@irdl_op_definition
class CrossEntropyOp(LabelLossOp):
    """
    The cross-entropy of logits `[..., V]` and labels `[...]` in `0 .. V-1`:
    `loss = sum_i (log sum_v exp(logits[i, v]) - logits[i, labels[i]]) / divisor`, a
    scalar (f64 for f64 logits, else f32). Positions labelled `ignore_index` count 0.

    `divisor` is a number of the whole program (the global number of labels for a mean;
    1 when absent), so that a device that holds part of the labels computes its term.
    """

    name = "train.cross_entropy"
    DECOMPOSES: ClassVar[bool] = True
    TORCH: ClassVar[str] = (
        "cross_entropy({*}, {op.factor}, {op.ignored}, {result:dtype})"
    )
    COST_CLASS: ClassVar[str] = "loss"

    logits = operand_def(TensorType)
    labels = operand_def(TensorType)
    loss = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.logits, self.labels)

    @staticmethod
    def formula(
        logits: Expr, labels: Expr, *, divisor: int = 1, ignore_index: int | None = None
    ) -> Expr:
        logits = logits.wide()
        shifted = logits - logits.max(-1, keepdims=True)
        chosen = shifted.chosen(_classes(labels, ignore_index))
        each = log(exp(shifted).sum(-1)) - chosen
        return total_loss(each, labels, divisor, ignore_index)


@irdl_op_definition
class CrossEntropyGradOp(LabelLossOp):
    """
    The gradient of `train.cross_entropy`:
    `dlogits[i, v] = dloss / divisor * (softmax(logits[i])[v] - (v == labels[i]))`, and 0
    where the label is `ignore_index`.
    """

    name = "train.cross_entropy_grad"
    DECOMPOSES: ClassVar[bool] = True
    COST_CLASS: ClassVar[str] = "loss"

    dloss = operand_def(TensorType)
    logits = operand_def(TensorType)
    labels = operand_def(TensorType)
    dlogits = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dloss": total_of("logits")}

    def verify_(self) -> None:
        self._verify(self.logits, self.labels)

    @staticmethod
    def formula(
        dloss: Expr,
        logits: Expr,
        labels: Expr,
        *,
        divisor: int = 1,
        ignore_index: int | None = None,
    ) -> Expr:
        exponentials = exp(logits - logits.max(-1, keepdims=True))
        share = exponentials / exponentials.sum(-1, keepdims=True)
        slope = share - one_hot(_classes(labels, ignore_index), logits)
        weight = label_weight(dloss, labels, divisor, ignore_index)
        return (slope * weight).like(logits)


OPS = [CrossEntropyOp, CrossEntropyGradOp]
