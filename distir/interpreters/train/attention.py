"""The gradient of fused attention on arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distir.dialects.train_ops.attention import AttentionGradOp
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
    op_class,
)
from distir.interpreters.train.arithmetic import Array, computes


def _by_head(x: Array, heads: int) -> Array:
    """`[batch, length, heads * size]` as `[batch, heads, length, size]`."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _like(x: Array, like: Array) -> Array:
    """The inverse of `_by_head`."""
    return x.swapaxes(1, 2).reshape(like.shape) if like.ndim == 3 else x


def probabilities(scores: Array, mask: Array | None, is_causal: bool) -> Array:
    """Scores under a mask, normalised along keys; 0 for a query that sees no key."""
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask
    if is_causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


@computes(AttentionGradOp)
def attention_gradient(op: AttentionGradOp, *operands: Array) -> tuple[Array, ...]:
    sizes, scale = op.sizes, op.factor
    groups = sizes.query_heads // sizes.key_heads
    dy, q = (_by_head(x, sizes.query_heads) for x in operands[:2])
    k, v = (
        np.repeat(_by_head(x, sizes.key_heads), groups, axis=1) for x in operands[2:4]
    )
    mask = None if op.mask is None else operands[4]
    scores = q @ k.swapaxes(2, 3) * q.dtype.type(scale)
    p = probabilities(scores, mask, op.is_causal is not None)
    dp = dy @ v.swapaxes(2, 3)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * q.dtype.type(scale)

    def over_groups(x: Array) -> Array:
        shape = (sizes.batch, sizes.key_heads, groups, *x.shape[2:])
        return x.reshape(shape).sum(2)

    dk = over_groups(ds.swapaxes(2, 3) @ q)
    dv = over_groups(p.swapaxes(2, 3) @ dy)
    found = zip((ds @ k, dk, dv), operands[1:4], strict=True)
    return tuple(_like(gradient, operand) for gradient, operand in found)


@cost_function("train.attention_grad")
def attention_gradient_cost(context: CostContext) -> Cost:
    """The forward runs again, on copies of its operands; its result is kept."""
    dy, q, k, v, *_ = context.operand_bytes
    return replace(context.roofline(), workspace=dy + q + k + v)


op_class("attention_gradient", "train.attention_grad")
