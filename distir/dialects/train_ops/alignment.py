"""The loss of all alignments of labels with a sequence (CTC), and its gradient."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of, tensor_of
from distir.dialects.train_ops.base import I64, Derived, TrainOp, Types, like
from distir.dialects.train_ops.checks import check_float, check_integers, check_shape


def _of_samples(value: SSAValue) -> TensorType:
    """Returns a tensor with a number for each sample of logarithms of probabilities."""
    return tensor_of(element_type(value), shape_of(value)[1:2])


class CtcOp(TrainOp):
    """
    Base of the loss and its gradient. `log_probs` [steps, samples, classes] are logarithms
    of probabilities; `targets` [samples, labels] are classes; of each sample, as many steps
    and labels count as `steps` and `labels` [samples] say. `blank` is the class that stands
    for no label.
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
    The connectionist temporal classification loss of each sample (Graves et al. 2006): minus
    the logarithm of the probability of all ways to read its labels from its steps. It is
    infinite where there is none, or 0 with `zero_infinity`.
    """

    name = "train.ctc_loss"
    FACTORS: ClassVar[str] = "[s, n, c], [n, l], [n], [n] -> [n] keep s l c"

    losses = result_def(TensorType)

    TYPES: ClassVar[Types] = {"losses": Derived("log_probs", _of_samples)}


@irdl_op_definition
class CtcLossGradOp(CtcOp):
    """
    The gradient of `train.ctc_loss` with respect to `log_probs`, as PyTorch defines it: that
    of scores of which `log_probs` are the log-softmax. It is 0 for an infinite loss with
    `zero_infinity`, and NaN without.
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


OPS = [CtcLossOp, CtcLossGradOp]
