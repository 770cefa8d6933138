"""Fused attention with dropout inside, and its gradient, on arrays, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distir.dialects.train_ops.dropped_attention import (
    DroppedAttentionBase,
    DroppedAttentionGradOp,
    DroppedAttentionOp,
)
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes
from distir.interpreters.train.attention import (
    Attended,
    attended,
    attention_gradients,
    attention_results,
    logsumexp_of,
)
from distir.interpreters.train.dropout import kept

_FORWARD_PASSES, _GRADIENT_PASSES = 6, 11
"""
How often the scores pass through memory: the results of the products, the softmax and the
dropout are written once and read once. The gradient computes the probabilities again, and
reads those of scores for two products.
"""


def _read(
    op: DroppedAttentionBase, *operands: Array
) -> tuple[tuple[Array, ...], Attended, Array]:
    """
    Returns queries, keys and values, what attention computes of them, and the factor of
    each probability: that of a kept element, or 0.
    """
    inputs = operands[: 3 if op.mask is None else 4]
    counter, *places = operands[len(inputs) :]
    scale = inputs[0].dtype.type(op.kept_factor)
    keep = kept(op, op.drawn_shape, counter, places)
    return inputs, attended(op, *inputs), np.where(keep, scale, 0)


@computes(DroppedAttentionOp)
def dropped_attention(op: DroppedAttentionOp, *operands: Array) -> tuple[Array, ...]:
    inputs, found, factors = _read(op, *operands)
    sums = logsumexp_of(found.shown)
    return attention_results(op, found, sums, inputs[0], factors)


@computes(DroppedAttentionGradOp)
def dropped_attention_gradient(
    op: DroppedAttentionGradOp, dy: Array, y: Array, logsumexp: Array, *operands: Array
) -> tuple[Array, ...]:
    inputs, found, factors = _read(op, *operands)
    return attention_gradients(op, dy, y, logsumexp, inputs, found, factors)


@cost_function("train.dropped_attention", "train.dropped_attention_grad")
def written_out(context: CostContext) -> Cost:
    """
    The cost of attention with dropout inside. No kernel of PyTorch draws these random
    numbers, so that scores pass through memory, those of one sample at a time.
    """
    op = context.op
    assert isinstance(op, DroppedAttentionBase)
    is_gradient = isinstance(op, DroppedAttentionGradOp)
    rows = context.operand_bytes[2] if is_gradient else context.result_bytes[1]
    passes = _GRADIENT_PASSES if is_gradient else _FORWARD_PASSES
    scores = rows * op.sizes.keys
    cost = context.roofline(moved=context.bytes + passes * scores)
    parts = context.work.parts
    samples = op.sizes.batch
    for factor in context.work.rule.operands[0][0]:
        samples //= parts.get(factor, 1)
    return replace(cost, workspace=2 * scores // max(samples, 1))
