"""
Losses and their gradients: cross-entropy of integer labels, and the CTC loss over all
alignments of labels with a sequence.

`train.cross_entropy` and its gradient decompose into steps, also in this module, in
which devices can split the classes (a vocabulary-parallel loss, as in Megatron-LM). The
devices exchange one number per label and no logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import BFloat16Type, Float16Type, TensorType, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist_attributes import NARROW_LOSS
from distir.dialects.formula import Expr, differs, exp, log, one_hot, where
from distir.dialects.tensors import element_type, shape_of, tensor_of
from distir.dialects.train_ops.base import (
    I64,
    Derived,
    FormulaOp,
    TrainOp,
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

LOGITS_AT_ONCE = 1 << 24
"""
The largest number of logits for which generated packages compute the loss or its
gradient in one piece. They copy so many logits to the type of the computation (`CHUNK`
in `distir/runtime/layers/losses.py`, which imports nothing from here).
"""


def check_logits(op: Operation, logits: SSAValue) -> None:
    """
    Raises VerifyException unless `logits` holds floats and has at least one dimension.
    """
    if not shape_of(logits):
        raise VerifyException(f"{op.name}: logits need a dimension of classes")
    check_float(op, "logits", logits)


def is_narrow_loss(op: Operation) -> bool:
    """
    Whether the model computes a loss in the type of its logits, which have 16 bits:
    `op` is marked so (`dist.narrow_loss`), or it is a loss of ONNX of such a type. An
    unmarked `train.cross_entropy` computes in 32 bits.
    """
    if NARROW_LOSS in op.attributes:
        return True
    if op.name != "onnx.SoftmaxCrossEntropyLoss":
        return False
    return isinstance(element_type(op.results[0]), Float16Type | BFloat16Type)


def total_loss(
    each: Expr, labels: Expr, divisor: int, ignore_index: int | None
) -> Expr:
    """
    Returns the sum of the losses `each` of all labels but `ignore_index`, divided by
    `divisor`.
    """
    # No label is -1, so that without `ignore_index` all labels count.
    counts = differs(labels, -1 if ignore_index is None else ignore_index)
    return where(counts, each, 0).sum() * (1.0 / divisor)


def label_weight(
    dloss: Expr, labels: Expr, divisor: int, ignore_index: int | None
) -> Expr:
    """
    Returns the factor of the gradient of each label's loss, with shape [..., 1]: `dloss
    / divisor`, and 0 for labels that equal `ignore_index`. Without `ignore_index` the
    factor is a scalar.
    """
    weight = dloss * (1.0 / divisor)
    if ignore_index is None:
        return weight
    return differs(labels, ignore_index).expanded(-1) * weight


def _classes(labels: Expr, ignore_index: int | None) -> Expr:
    """Returns the labels, with 0 in place of `ignore_index`."""
    if ignore_index is None:
        return labels
    return where(differs(labels, ignore_index), labels, 0)


class LabelLossOp(FormulaOp):
    """
    Base of losses of integer labels and of their gradients. These ops have an operand
    `labels`, a divisor, and a label `ignore_index`. Positions with this label add
    nothing to the loss.
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
        """
        The label whose positions add nothing to the loss, or None if no label is
        ignored.
        """
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
    The cross-entropy of logits `[..., V]` and labels `[...]` in `0 .. V-1`, as a scalar
    (f64 for f64 logits, else f32): `loss = sum_i (log sum_v exp(logits[i, v]) -
    logits[i, labels[i]]) / divisor`. Positions labelled `ignore_index` add 0.

    `divisor` is the same on all devices: the global number of labels for a mean, and 1
    if absent. A device that holds part of the labels thus computes its term of the
    loss.
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


def _of_samples(value: SSAValue) -> TensorType:
    """
    Returns the type of a tensor with one number per sample of the log-probabilities
    `value` [steps, samples, classes].
    """
    return tensor_of(element_type(value), shape_of(value)[1:2])


class CtcOp(TrainOp):
    """
    Base of the CTC loss and its gradient. `log_probs` [steps, samples, classes] are
    log-probabilities, and `targets` [samples, labels] are classes. `steps` and `labels`
    [samples] give the number of valid steps and labels of each sample; all further
    steps and labels are ignored. `blank` is the class that stands for "no label".
    """

    TORCH: ClassVar[str] = (
        "{op}({*}, blank={blank}, zero_infinity={zero_infinity:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "alignment"
    COST_CLASS: ClassVar[str] = "loss"

    log_probs = operand_def(TensorType)
    targets = operand_def(TensorType)
    steps = operand_def(TensorType)
    labels = operand_def(TensorType)
    blank = prop_def(I64)
    zero_infinity = opt_prop_def(UnitAttr)

    def verify_(self) -> None:
        check_float(self, "log_probs", self.log_probs)
        sizes = shape_of(self.log_probs)
        if len(sizes) != 3 or len(shape_of(self.targets)) != 2:
            raise VerifyException(
                f"{self.name}: log_probs has shape {list(sizes)} and targets "
                f"{list(shape_of(self.targets))}, expected three and two dimensions"
            )
        if not 0 <= self.blank.value.data < sizes[2]:
            raise VerifyException(
                f"{self.name}: blank {self.blank.value.data} is none of {sizes[2]} classes"
            )
        check_integers(self, "targets", self.targets)
        check_shape(self, "targets", self.targets, (sizes[1], -1))
        for name in ("steps", "labels"):
            check_integers(self, name, getattr(self, name))
            check_shape(self, name, getattr(self, name), (sizes[1],))
        super().verify_()


@irdl_op_definition
class CtcLossOp(CtcOp):
    """
    The connectionist temporal classification loss of each sample (Graves et al. 2006):
    minus the logarithm of the total probability of all alignments of the sample's
    labels with its steps. If no alignment exists, the loss is infinite, or 0 with
    `zero_infinity`.
    """

    name = "train.ctc_loss"
    FACTORS: ClassVar[str] = "[s, n, c], [n, l], [n], [n] -> [n] keep s l c"

    losses = result_def(TensorType)

    TYPES: ClassVar[Types] = {"losses": Derived("log_probs", _of_samples)}


@irdl_op_definition
class CtcLossGradOp(CtcOp):
    """
    The gradient of `train.ctc_loss` as PyTorch defines it: with respect to the scores
    whose log-softmax is `log_probs`. The gradient of an infinite loss is NaN, or 0 with
    `zero_infinity`.
    """

    name = "train.ctc_loss_grad"
    FACTORS: ClassVar[str] = (
        "[n], [s, n, c], [n, l], [n], [n] -> [s, n, c] keep s l c linear 0"
    )

    dlosses = operand_def(TensorType)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        "dlosses": Derived("log_probs", _of_samples),
        "dx": like("log_probs"),
    }


def _per_label(logits: SSAValue) -> TensorType:
    return TensorType(accumulation_type(logits), shape_of(logits)[:-1])


PER_LABEL = Derived("logits", _per_label)
"""
The rule that a value has one number per label of `logits`, in the accumulation type.
"""


@irdl_op_definition
class LogitMaximumOp(FormulaOp):
    """
    The largest logit for each label: `maximum[i] = max_v logits[i, v]`, for logits
    `[..., V]`. The result is f64 for f64, else f32.
    """

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
    """
    The sum of exponentials for each label, in the type of `maximum`: `total[i] = sum_v
    exp(logits[i, v] - maximum[i])`.
    """

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
    The logit of each label's class: `chosen[i] = logits[i, labels[i]]`, and 0 if the
    label is outside of `0 .. V-1`. A device that holds some of the classes thus returns
    the logits of the labels of these classes.
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
    The sum of the cross-entropies of all labels: `loss = sum_i (log total[i] +
    maximum[i] - chosen[i]) / divisor`, without positions labelled `ignore_index`.
    `classes` is the number of classes in the whole program. In PyTorch, a label outside
    of the classes makes the loss NaN.
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
    The gradient of `train.cross_entropy` for the classes that a device holds:
    `dlogits[i, v] = dloss / divisor * (exp(logits[i, v] - maximum[i]) / total[i] - (v
    == labels[i]))`, and 0 where the label is `ignore_index`. A label outside of `0 ..
    V-1` belongs to a class that another device holds.
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


"""The ops that this module defines."""


OPS = [
    CrossEntropyOp,
    CrossEntropyGradOp,
    CtcLossOp,
    CtcLossGradOp,
    LogitMaximumOp,
    ExponentialSumOp,
    LabelLogitOp,
    CrossEntropySumOp,
    CrossEntropyPartGradOp,
]
