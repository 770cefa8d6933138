"""
The steps of a cross-entropy whose classes are split (a vocabulary-parallel loss, as in
Megatron-LM), and of its gradient.

`train.cross_entropy` and its gradient decompose into these; only numbers per label, no
logits, are sent between devices.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, exp, log, one_hot
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import (
    I64,
    Derived,
    FormulaOp,
    Types,
    like,
    total_of,
)
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_float,
    check_integers,
    check_shape,
)
from distir.dialects.train_ops.losses import (
    LabelLossOp,
    check_logits,
    label_weight,
    total_loss,
)


def _per_label(logits: SSAValue) -> TensorType:
    return TensorType(accumulation_type(logits), shape_of(logits)[:-1])


PER_LABEL = Derived("logits", _per_label)
"""A number of the accumulation type for each label."""


@irdl_op_definition
class LogitMaximumOp(FormulaOp):
    """`maximum[i] = max_v logits[i, v]`, of logits `[..., V]`; f64 for f64, else f32."""

    name = "train.logit_maximum"
    TORCH: ClassVar[str] = "logit_maximum({0}, {result:dtype})"
    TORCH_MODULE: ClassVar[str] = "losses"

    logits = operand_def(TensorType)
    maximum = result_def(TensorType)

    def verify_(self) -> None:
        check_logits(self, self.logits)
        super().verify_()

    @staticmethod
    def formula(logits: Expr) -> Expr:
        return logits.wide().max(-1)


@irdl_op_definition
class ExponentialSumOp(FormulaOp):
    """`total[i] = sum_v exp(logits[i, v] - maximum[i])`, in the type of the maximum."""

    name = "train.exponential_sum"
    TORCH: ClassVar[str] = "exponential_sum({0}, {1})"
    TORCH_MODULE: ClassVar[str] = "losses"
    COST_CLASS: ClassVar[str] = "loss"

    logits = operand_def(TensorType)
    maximum = operand_def(TensorType)
    total = result_def(TensorType)

    TYPES: ClassVar[Types] = {"maximum": PER_LABEL}

    def verify_(self) -> None:
        check_logits(self, self.logits)
        super().verify_()

    @staticmethod
    def formula(logits: Expr, maximum: Expr) -> Expr:
        return exp(logits - maximum.expanded(-1)).sum(-1)


@irdl_op_definition
class LabelLogitOp(FormulaOp):
    """
    `chosen[i] = logits[i, labels[i]]`, and 0 where the label is none of `0 .. V-1`: a
    device that holds some of the classes gives the labels among them.
    """

    name = "train.label_logit"
    TORCH: ClassVar[str] = "label_logit({0}, {1}, {result:dtype})"
    TORCH_MODULE: ClassVar[str] = "losses"
    COST_CLASS: ClassVar[str] = "gather"

    logits = operand_def(TensorType)
    labels = operand_def(TensorType)
    chosen = result_def(TensorType)

    def verify_(self) -> None:
        check_logits(self, self.logits)
        check_integers(self, "labels", self.labels)
        check_shape(self, "labels", self.labels, shape_of(self.logits)[:-1])
        super().verify_()

    @staticmethod
    def formula(logits: Expr, labels: Expr) -> Expr:
        return logits.wide().chosen(labels)


@irdl_op_definition
class CrossEntropySumOp(LabelLossOp):
    """
    `loss = sum_i (log total[i] + maximum[i] - chosen[i]) / divisor`, without positions
    labelled `ignore_index`; labels are one of `classes`, a number of the whole program. If
    a label is none of them, the loss is NaN in PyTorch.
    """

    name = "train.cross_entropy_sum"
    TORCH: ClassVar[str] = (
        "cross_entropy_sum({*}, {op.count}, {op.factor}, {op.ignored})"
    )

    maximum = operand_def(TensorType)
    total = operand_def(TensorType)
    chosen = operand_def(TensorType)
    labels = operand_def(TensorType)
    classes = prop_def(I64)
    loss = result_def(TensorType)

    TYPES: ClassVar[Types] = {"total": like("maximum"), "chosen": like("maximum")}

    @property
    def count(self) -> int:
        """The number of classes in the whole program."""
        return self.classes.value.data

    def verify_(self) -> None:
        self._verify_labels(self.labels, shape_of(self.maximum))
        check_float(self, "maximum", self.maximum)
        super().verify_()
        if self.count < 1:
            raise VerifyException(f"{self.name}: classes must be positive")

    @staticmethod
    def formula(
        maximum: Expr,
        total: Expr,
        chosen: Expr,
        labels: Expr,
        *,
        divisor: int = 1,
        ignore_index: int | None = None,
    ) -> Expr:
        each = log(total) - (chosen - maximum)
        return total_loss(each.wide(), labels, divisor, ignore_index)


@irdl_op_definition
class CrossEntropyPartGradOp(LabelLossOp):
    """
    The gradient of `train.cross_entropy` for some of the classes:
    `dlogits[i, v] = dloss / divisor * (exp(logits[i, v] - maximum[i]) / total[i] - (v ==
    labels[i]))`, and 0 where the label is `ignore_index`. Other labels may be none of
    `0 .. V-1`: their class is held elsewhere.
    """

    name = "train.cross_entropy_part_grad"
    COST_CLASS: ClassVar[str] = "loss"

    dloss = operand_def(TensorType)
    logits = operand_def(TensorType)
    labels = operand_def(TensorType)
    maximum = operand_def(TensorType)
    total = operand_def(TensorType)
    dlogits = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        "dloss": total_of("logits"),
        "maximum": PER_LABEL,
        "total": PER_LABEL,
    }

    def verify_(self) -> None:
        self._verify(self.logits, self.labels)

    @staticmethod
    def formula(
        dloss: Expr,
        logits: Expr,
        labels: Expr,
        maximum: Expr,
        total: Expr,
        *,
        divisor: int = 1,
        ignore_index: int | None = None,
    ) -> Expr:
        share = exp(logits - maximum.expanded(-1)) / total.expanded(-1)
        weight = label_weight(dloss, labels, divisor, ignore_index)
        return ((share - one_hot(labels, logits)) * weight).like(logits)


OPS = [
    LogitMaximumOp,
    ExponentialSumOp,
    LabelLogitOp,
    CrossEntropySumOp,
    CrossEntropyPartGradOp,
]
"""The ops of this family."""
