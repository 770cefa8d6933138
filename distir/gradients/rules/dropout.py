"""The gradient rules of dropout, and of attention with dropout on its probabilities."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.train_ops.dropout import (
    DropoutGradOp,
    DropoutOp,
    DroppedAttentionGradOp,
    DroppedAttentionOp,
)
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule
from distir.gradients.rules.arithmetic import is_wanted
from distir.gradients.rules.attention import mask_gradient


@gradient_rule("train.dropout")
def dropout(op: DropoutOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of `train.dropout`: the elements of dy that the forward pass kept,
    multiplied by the same scale. The kept elements are known from the mask of the
    forward pass or, without a mask, from drawing the same random numbers again.
    """
    gradient = gradients[0]
    assert gradient is not None
    if op.mask is not None:
        by_mask = DropoutGradOp(gradient, op.mask, ratio=op.ratio)
        return [build.result(by_mask), None]
    drawn = {"ratio": op.ratio, "seed": op.seed, "stream": op.stream}
    again = DropoutOp(gradient, op.counter, **drawn)
    return [build.result(again), None]


@gradient_rule("train.dropped_attention")
def dropped_attention(
    op: DroppedAttentionOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.dropped_attention`. The gradients are computed from the op's
    operands and results. The random numbers are drawn again.
    """
    dy = gradients[0]
    assert dy is not None
    settings = {n: a for n, a in op.properties.items() if n != "operandSegmentSizes"}
    fused = DroppedAttentionGradOp(
        *(dy, op.y, op.logsumexp, op.q, op.k, op.v),
        *(op.mask, op.counter, op.coordinates),
        **settings,
    )
    found: list[SSAValue | None] = [*build.add(fused).results]
    if op.mask is not None:
        found.append(mask_gradient(fused, build) if is_wanted(op.mask) else None)
    return [*found, *[None] * (len(op.operands) - len(found))]
