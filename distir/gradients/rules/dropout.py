"""Gradient rule of dropout."""

from __future__ import annotations

from distir.dialects.train_ops.dropout import DropoutOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("train.dropout")
def dropout(op: DropoutOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The same op on the gradient: it draws the same numbers, so no mask is kept."""
    (gradient,) = gradients
    assert gradient is not None
    again = DropoutOp(
        gradient,
        op.counter,
        ratio=op.ratio.value.data,
        seed=op.seed.value.data,
        stream=op.stream.value.data,
    )
    return [build.add(again).results[0], None]
