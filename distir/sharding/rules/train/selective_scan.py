"""Rules of the recurrence of selective state spaces and of its gradient."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.selective_scan import (
    ScanOperandsOp,
    SelectiveScanGradOp,
    SelectiveScanOp,
)
from distir.sharding.rule import Kind, Rule
from distir.sharding.rules.builder import Dim, Dims, RuleBuilder, train_rule

_FORWARD_FLOPS, _BACKWARD_FLOPS = 7, 21
"""
Of one state in one step: two products and an exponential for its decay, a product and a sum
for what is added, a product and a sum for the result. The gradient computes the state again
(5), then its gradient (3) and its terms in the gradients of c (2), a and dt (6), x (2) and b
(3).
"""


def _factors(
    op: ScanOperandsOp, builder: RuleBuilder, states: Kind
) -> tuple[Dim, Dim, Dim, list[Dims]]:
    """Returns the factors of batch, channels and states, and the dimensions of x to c."""
    batch, channel = builder.factors(shape_of(op.x)[:2])
    state = builder.factor(shape_of(op.a)[1], states)
    wide, narrow = (batch, channel, ()), (batch, state, ())
    return batch, channel, state, [wide, wide, (channel, state), narrow, narrow]


def _elements(op: ScanOperandsOp) -> int:
    """Returns the number of states of all steps."""
    batch, channels, steps = shape_of(op.x)
    return batch * channels * steps * shape_of(op.a)[1]


@train_rule("selective_scan")
def selective_scan(op: SelectiveScanOp) -> Rule:
    """
    The rule of the scan: batch and channels are parallel, the result is a sum over states,
    time is whole. Linear in x, in b and in c, each by itself.
    """
    builder = RuleBuilder(op)
    *_, operands = _factors(op, builder, "reduction")
    return builder.rule(
        operands,
        [operands[0]],
        linear=[(0,), (3,), (4,)],
        flops=_FORWARD_FLOPS * _elements(op),
    )


@train_rule("selective_scan_grad")
def selective_scan_gradient(op: SelectiveScanGradOp) -> Rule:
    """
    The rule of the gradient: the gradients of x and dt are sums over states, that of a is one
    over the batch, those of b and c are sums over channels.
    """
    builder = RuleBuilder(op)
    batch, channel, state, operands = _factors(op, builder, "parallel")
    return builder.rule(
        [operands[0], *operands],
        operands,
        linear=[(0,)],
        reduced={0: (state,), 1: (state,), 2: (batch,), 3: (channel,), 4: (channel,)},
        flops=_BACKWARD_FLOPS * _elements(op),
    )
