"""The gradient rule of dropout."""

from __future__ import annotations

from distir.dialects.train_ops.dropout import DropoutGradOp, DropoutOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("train.dropout")
def dropout(op: DropoutOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Keeps the elements that the forward kept: by its mask or, without one, by drawing the
    same random numbers again.
    """
    gradient = gradients[0]
    assert gradient is not None
    if op.mask is not None:
        by_mask = DropoutGradOp(gradient, op.mask, ratio=op.ratio)
        return [build.result(by_mask), None]
    drawn = {"ratio": op.ratio, "seed": op.seed, "stream": op.stream}
    again = DropoutOp(gradient, op.counter, **drawn)
    return [build.result(again), None]
