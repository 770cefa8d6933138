"""Fused attention and its gradient on arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    AttentionOp,
    FusedAttentionOp,
)
from distir.interpreters.simulator.costs.op_costs import op_class
from distir.interpreters.train.arithmetic import Array, computes


def _by_head(x: Array, heads: int) -> Array:
    """Returns `[batch, length, heads * size]` as `[batch, heads, length, size]`."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _like(x: Array, like: Array) -> Array:
    """Returns the inverse of `_by_head`, in the form of `like`."""
    return x.swapaxes(1, 2).reshape(like.shape) if like.ndim == 3 else x


@dataclass(frozen=True)
class _Attended:
    """
    The operands of attention by head, with keys and values repeated for each query head;
    `scores` with the factor and the cap; `shown`, the scores with the mask.
    """

    q: Array
    k: Array
    v: Array
    scores: Array
    shown: Array


def _attended(
    op: FusedAttentionOp, q: Array, k: Array, v: Array, mask: Array | None = None
) -> _Attended:
    sizes = op.sizes
    groups = sizes.query_heads // sizes.key_heads
    q = _by_head(q, sizes.query_heads)
    k, v = (np.repeat(_by_head(x, sizes.key_heads), groups, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * q.dtype.type(op.factor)
    if op.cap is not None:
        cap = q.dtype.type(op.cap)
        scores = cap * np.tanh(scores / cap)
    shown = scores
    if mask is not None and mask.dtype == bool:
        shown = np.where(mask, shown, -np.inf)
    elif mask is not None:
        shown = shown + mask
    if op.is_causal is not None:
        shown = np.where(np.tri(*shown.shape[2:], dtype=bool), shown, -np.inf)
    return _Attended(q, k, v, scores, shown)


def _logsumexp(shown: Array) -> Array:
    """
    Returns the logarithm of the sum of exponentials along keys; 0 for a query that sees
    none.
    """
    largest = shown.max(-1, keepdims=True)
    largest = np.where(np.isneginf(largest), 0, largest)
    total = np.exp(shown - largest).sum(-1)
    return np.where(total == 0, 0, largest[..., 0] + np.log(np.where(total, total, 1)))


@computes(AttentionOp)
def attention(op: AttentionOp, *operands: Array) -> tuple[Array, ...]:
    found = _attended(op, *operands)
    logsumexp = _logsumexp(found.shown)
    p = np.exp(found.shown - logsumexp[..., None])
    y = (p @ found.v).astype(operands[0].dtype)
    if op.is_packed:
        y = y.swapaxes(1, 2).reshape(*operands[0].shape[:2], -1)
    return y, logsumexp


@computes(AttentionGradOp)
def attention_gradient(
    op: AttentionGradOp, dy: Array, y: Array, logsumexp: Array, *operands: Array
) -> tuple[Array, ...]:
    sizes, scale = op.sizes, dy.dtype.type(op.factor)
    groups = sizes.query_heads // sizes.key_heads
    dy, y = (_by_head(x, sizes.query_heads) for x in (dy, y))
    found = _attended(op, *operands)
    p = np.exp(found.shown - logsumexp[..., None]).astype(dy.dtype)
    dp = dy @ found.v.swapaxes(2, 3)
    ds = p * (dp - (dy * y).sum(-1, keepdims=True)) * scale
    if op.cap is not None:
        ds = ds * (1 - (found.scores / dy.dtype.type(op.cap)) ** 2)

    def over_groups(x: Array) -> Array:
        shape = (sizes.batch, sizes.key_heads, groups, *x.shape[2:])
        return x.reshape(shape).sum(2)

    dk = over_groups(ds.swapaxes(2, 3) @ found.q)
    dv = over_groups(p.swapaxes(2, 3) @ dy)
    gradients = zip((ds @ found.k, dk, dv), operands, strict=False)
    return tuple(_like(gradient, operand) for gradient, operand in gradients)


op_class("attention", "train.attention")
op_class("attention_gradient", "train.attention_grad")
