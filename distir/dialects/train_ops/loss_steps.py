"""
The steps of a cross-entropy whose classes are split (a vocabulary-parallel loss, as in
Megatron-LM), and of its gradient. `train.cross_entropy` and its gradient decompose into
these; only numbers per label, no logits, travel between devices.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, TensorType, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_element_type,
    check_float,
    check_integers,
    check_like,
    check_shape,
    element_type,
    shape_of,
)
from distir.dialects.train_ops.losses import I64, LabelLossOp, check_logits


def _check_per_label(
    op: IRDLOperation, name: str, value: SSAValue, logits: SSAValue
) -> None:
    check_shape(op, name, value, shape_of(logits)[:-1])
    check_element_type(op, name, value, accumulation_type(logits))


def _per_label(logits: SSAValue) -> TensorType:
    """A number of the accumulation type for each label."""
    return TensorType(accumulation_type(logits), shape_of(logits)[:-1])


@irdl_op_definition
class LogitMaximumOp(TrainOp):
    """`maximum[i] = max_v logits[i, v]`, of logits `[..., V]`; f64 for f64, else f32."""

    name = "train.logit_maximum"

    logits = operand_def(TensorType)
    maximum = result_def(TensorType)

    def __init__(self, logits: SSAValue):
        super().__init__(operands=[logits], result_types=[_per_label(logits)])

    def verify_(self) -> None:
        check_logits(self, self.logits)
        _check_per_label(self, "maximum", self.maximum, self.logits)


@irdl_op_definition
class ExponentialSumOp(TrainOp):
    """`total[i] = sum_v exp(logits[i, v] - maximum[i])`, in the type of the maximum."""

    name = "train.exponential_sum"

    logits = operand_def(TensorType)
    maximum = operand_def(TensorType)
    total = result_def(TensorType)

    def __init__(self, logits: SSAValue, maximum: SSAValue):
        super().__init__(operands=[logits, maximum], result_types=[_per_label(logits)])

    def verify_(self) -> None:
        check_logits(self, self.logits)
        _check_per_label(self, "maximum", self.maximum, self.logits)
        _check_per_label(self, "total", self.total, self.logits)


@irdl_op_definition
class LabelLogitOp(TrainOp):
    """
    `chosen[i] = logits[i, labels[i]]`, and 0 where the label is none of `0 .. V-1`: a
    device that holds some of the classes gives the labels among them.
    """

    name = "train.label_logit"

    logits = operand_def(TensorType)
    labels = operand_def(TensorType)
    chosen = result_def(TensorType)

    def __init__(self, logits: SSAValue, labels: SSAValue):
        super().__init__(operands=[logits, labels], result_types=[_per_label(logits)])

    def verify_(self) -> None:
        check_logits(self, self.logits)
        check_integers(self, "labels", self.labels)
        check_shape(self, "labels", self.labels, shape_of(self.logits)[:-1])
        _check_per_label(self, "chosen", self.chosen, self.logits)


@irdl_op_definition
class CrossEntropySumOp(LabelLossOp):
    """
    `loss = sum_i (log total[i] + maximum[i] - chosen[i]) / divisor`, without positions
    labelled `ignore_index`; labels are one of `classes`, a number of the whole program.
    Where one is none of them, the loss is NaN in PyTorch.
    """

    name = "train.cross_entropy_sum"

    maximum = operand_def(TensorType)
    total = operand_def(TensorType)
    chosen = operand_def(TensorType)
    labels = operand_def(TensorType)
    classes = prop_def(I64)
    loss = result_def(TensorType)

    def __init__(
        self,
        maximum: SSAValue,
        total: SSAValue,
        chosen: SSAValue,
        labels: SSAValue,
        classes: int,
        divisor: int | None = None,
        ignore_index: int | None = None,
    ):
        super().__init__(
            operands=[maximum, total, chosen, labels],
            result_types=[TensorType(element_type(maximum), [])],
            properties={
                "classes": IntegerAttr(classes, i64),
                **self._properties(divisor, ignore_index),
            },
        )

    @property
    def count(self) -> int:
        """How many classes the whole program has."""
        return self.classes.value.data

    def verify_(self) -> None:
        self._verify_labels(self.labels, shape_of(self.maximum))
        check_float(self, "maximum", self.maximum)
        check_like(self, "total", self.total, self.maximum)
        check_like(self, "chosen", self.chosen, self.maximum)
        check_shape(self, "loss", self.loss, ())
        check_element_type(self, "loss", self.loss, element_type(self.maximum))
        if self.count < 1:
            raise VerifyException(f"{self.name}: classes must be positive")


@irdl_op_definition
class CrossEntropyPartGradOp(LabelLossOp):
    """
    The gradient of `train.cross_entropy` for some of the classes:
    `dlogits[i, v] = dloss / divisor * (exp(logits[i, v] - maximum[i]) / total[i] - (v ==
    labels[i]))`, and 0 where the label is `ignore_index`. Other labels may be none of
    `0 .. V-1`: their class is held elsewhere.
    """

    name = "train.cross_entropy_part_grad"

    dloss = operand_def(TensorType)
    logits = operand_def(TensorType)
    labels = operand_def(TensorType)
    maximum = operand_def(TensorType)
    total = operand_def(TensorType)
    dlogits = result_def(TensorType)

    def __init__(
        self,
        dloss: SSAValue,
        logits: SSAValue,
        labels: SSAValue,
        maximum: SSAValue,
        total: SSAValue,
        divisor: int | None = None,
        ignore_index: int | None = None,
    ):
        super().__init__(
            operands=[dloss, logits, labels, maximum, total],
            result_types=[TensorType(element_type(logits), shape_of(logits))],
            properties=self._properties(divisor, ignore_index),
        )

    def verify_(self) -> None:
        self._verify(self.logits, self.labels, "dloss", self.dloss)
        _check_per_label(self, "maximum", self.maximum, self.logits)
        _check_per_label(self, "total", self.total, self.logits)
        check_like(self, "dlogits", self.dlogits, self.logits)


OPS = [
    LogitMaximumOp,
    ExponentialSumOp,
    LabelLogitOp,
    CrossEntropySumOp,
    CrossEntropyPartGradOp,
]
"""The steps of losses whose classes are split."""
