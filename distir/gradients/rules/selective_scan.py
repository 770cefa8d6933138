"""The gradient rule of the recurrence of selective state spaces."""

from __future__ import annotations

from distir.dialects.train_ops.selective_scan import (
    SelectiveScanGradOp,
    SelectiveScanOp,
)
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("train.selective_scan")
def selective_scan(
    op: SelectiveScanOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """One op, which needs the operands alone."""
    (dy,) = gradients
    assert dy is not None
    return build.add(SelectiveScanGradOp(dy, *op.operands)).results
