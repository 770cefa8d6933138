"""The gradient rule of the loss of all alignments."""

from __future__ import annotations

from xdsl.ir import Operation

from distir.dialects.train_ops.alignment import CtcLossGradOp, CtcLossOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("train.ctc_loss")
def loss(op: Operation, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """One kernel, which computes the variables of the forward again."""
    assert isinstance(op, CtcLossOp)
    (gradient,) = gradients
    if gradient is None:
        return [None] * 4
    given = (gradient, op.log_probs, op.targets, op.steps, op.labels)
    made = CtcLossGradOp(
        *given, blank=op.blank, zero_infinity=op.zero_infinity is not None
    )
    return [build.result(made), None, None, None]
