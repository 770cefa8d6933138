"""
Fused attention and its gradient on arrays, and the cost of causal attention whose
sequence is split over devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np
import numpy.typing as npt

from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    AttentionOp,
    CausalAttentionOp,
    FusedAttentionOp,
    MergeAttentionOp,
    PlacedAttentionGradOp,
    PlacedAttentionOp,
)
from distir.dialects.train_ops.paged_attention import (
    PagedAttentionOp,
    PagedOp,
    PagedReadOp,
    PagedWriteOp,
    PageSizes,
)
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cache_write,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes


def _by_head(x: Array, heads: int) -> Array:
    """
    Returns `x` of shape `[batch, length, heads * size]` as `[batch, heads, length,
    size]`. An array with four dimensions is returned unchanged.
    """
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _like(x: Array, like: Array) -> Array:
    """
    Returns `x` `[batch, heads, length, size]` in the form of `like`. If `like` has
    three dimensions, the result is `[batch, length, heads * size]`.
    """
    return x.swapaxes(1, 2).reshape(like.shape) if like.ndim == 3 else x


@dataclass(frozen=True)
class Attended:
    """
    The operands of attention by head, and the scores before the softmax. Keys and
    values are repeated for each query head. `scores` includes the scale and the cap,
    `shown` also the masks.
    """

    q: Array
    k: Array
    v: Array
    scores: Array
    shown: Array


def _blocks(op: FusedAttentionOp, length: int) -> Array:
    """
    Returns the index of the block that each of `length` queries or keys belongs to.
    """
    count = op.block_count
    run = length // count if op.run_length is None else op.run_length
    return np.arange(length) // max(run, 1) % count


def attended(
    op: FusedAttentionOp, q: Array, k: Array, v: Array, mask: Array | None = None
) -> Attended:
    """Returns the scores of attention before the softmax, and its operands by head."""
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
    if op.blocks is not None:
        same = _blocks(op, sizes.queries)[:, None] == _blocks(op, sizes.keys)
        shown = np.where(same, shown, -np.inf)
    return Attended(q, k, v, scores, shown)


def logsumexp_of(shown: Array) -> Array:
    """
    Returns the logarithm of the sum of exponentials of scores over keys. The result is
    0 for a query that sees no key.
    """
    largest = shown.max(-1, keepdims=True)
    largest = np.where(np.isneginf(largest), 0, largest)
    total = np.exp(shown - largest).sum(-1)
    return np.where(total == 0, 0, largest[..., 0] + np.log(np.where(total, total, 1)))


def _placed(found: Attended, query_positions: Array, key_positions: Array) -> Attended:
    """
    Returns `found` with minus infinity as the score of each key whose position is after
    the query's.
    """
    seen = key_positions <= query_positions[:, None]
    return replace(found, shown=np.where(seen, found.shown, -np.inf))


@computes(AttentionOp)
def attention(op: AttentionOp, *operands: Array) -> tuple[Array, ...]:
    found = attended(op, *operands)
    return attention_results(op, found, logsumexp_of(found.shown), operands[0])


@computes(PlacedAttentionOp)
def placed_attention(
    op: PlacedAttentionOp,
    query_positions: Array,
    key_positions: Array,
    *operands: Array,
) -> tuple[Array, ...]:
    found = _placed(attended(op, *operands), query_positions, key_positions)
    sums = logsumexp_of(found.shown)
    y, _ = attention_results(op, found, sums, operands[0])
    return y, np.where(np.isneginf(found.shown).all(-1), -np.inf, sums)


def attention_results(
    op: FusedAttentionOp,
    found: Attended,
    logsumexp: Array,
    q: Array,
    factors: Array | float = 1.0,
) -> tuple[Array, ...]:
    """
    Returns the output of attention, and `logsumexp`. The probabilities are multiplied
    by `factors`, such as dropout factors, before the product with the values.
    """
    p = np.exp(found.shown - logsumexp[..., None]) * factors
    y = (p @ found.v).astype(q.dtype)
    if op.is_packed:
        y = y.swapaxes(1, 2).reshape(*q.shape[:2], -1)
    return y, logsumexp


@computes(MergeAttentionOp)
def merge_attention(
    op: MergeAttentionOp, y_a: Array, sums_a: Array, y_b: Array, sums_b: Array
) -> tuple[Array, ...]:
    sums = np.logaddexp(sums_a, sums_b)
    known = np.where(np.isneginf(sums), 0, sums)

    def weighed(y: Array, own: Array) -> Array:
        share = np.exp(own - known)[..., None]
        return _like(_by_head(y, own.shape[1]) * share, y)

    return weighed(y_a, sums_a) + weighed(y_b, sums_b), sums


@computes(AttentionGradOp)
def attention_gradient(
    op: AttentionGradOp, dy: Array, y: Array, logsumexp: Array, *operands: Array
) -> tuple[Array, ...]:
    return attention_gradients(op, dy, y, logsumexp, operands, attended(op, *operands))


@computes(PlacedAttentionGradOp)
def placed_attention_gradient(
    op: PlacedAttentionGradOp,
    dy: Array,
    y: Array,
    logsumexp: Array,
    query_positions: Array,
    key_positions: Array,
    *operands: Array,
) -> tuple[Array, ...]:
    found = _placed(attended(op, *operands), query_positions, key_positions)
    # A query that sees no key has no probabilities.
    sums = np.where(np.isneginf(logsumexp), 0, logsumexp)
    return attention_gradients(op, dy, y, sums, operands, found)


def attention_gradients(
    op: FusedAttentionOp,
    dy: Array,
    y: Array,
    logsumexp: Array,
    operands: Sequence[Array],
    found: Attended,
    factors: Array | float = 1.0,
) -> tuple[Array, ...]:
    """
    Returns the gradients of queries, keys and values. `found` holds the recomputed
    scores. `factors` are the factors by which the forward pass multiplied the
    probabilities.
    """
    sizes, scale = op.sizes, dy.dtype.type(op.factor)
    groups = sizes.query_heads // sizes.key_heads
    dy, y = (_by_head(x, sizes.query_heads) for x in (dy, y))
    p = np.exp(found.shown - logsumexp[..., None]).astype(dy.dtype)
    dp = dy @ found.v.swapaxes(2, 3) * factors
    ds = p * (dp - (dy * y).sum(-1, keepdims=True)) * scale
    if op.cap is not None:
        ds = ds * (1 - (found.scores / dy.dtype.type(op.cap)) ** 2)

    def over_groups(x: Array) -> Array:
        shape = (sizes.batch, sizes.key_heads, groups, *x.shape[2:])
        return x.reshape(shape).sum(2)

    dk = over_groups(ds.swapaxes(2, 3) @ found.q)
    dv = over_groups((p * factors).astype(dy.dtype).swapaxes(2, 3) @ dy)
    gradients = zip((ds @ found.k, dk, dv), operands, strict=False)
    return tuple(_like(gradient, operand) for gradient, operand in gradients)


@cache
def seen_pairs(
    length: int, devices: int, run: int | None = None, step: int | None = None
) -> npt.NDArray[np.int64]:
    """
    Returns, for each device, the number of pairs of a query on this device and a key
    that the query sees under a causal mask. The `length` tokens are dealt out to
    `devices` devices in runs of `run` tokens, or contiguously if `run` is None. If
    `step` is given, only keys of one device are counted: of the device `step` places
    before the query's device, around the ring.
    """
    rounds = 1 if run is None else length // (devices * run)
    places = np.arange(length).reshape(rounds, devices, -1)
    own = [places[:, device].ravel() for device in range(devices)]

    def keys(device: int) -> npt.NDArray[np.int64]:
        return places.ravel() if step is None else own[(device - step) % devices]

    counts = [
        np.searchsorted(keys(i), queries, side="right").sum()
        for i, queries in enumerate(own)
    ]
    return np.array(counts)


def imbalance(context: CostContext) -> float:
    """
    Returns the work of the busiest device in causal attention, divided by the mean work
    of all devices. The result is 1 if queries are not split.
    """
    op = context.op
    assert isinstance(op, CausalAttentionOp)
    layout, length = layout_of(op.query_positions), op.sizes.queries
    parts = context.work.parts
    place = list(op.operands).index(op.query_positions)
    (row,) = context.work.rule.operands[place]
    devices = prod(parts.get(factor, 1) for factor in row)
    shards = () if layout is None else layout.dim(0)
    if len(shards) != 1 or op.sizes.keys != length:
        return 1.0
    step = None if op.step is None else op.step.value.data
    pairs = seen_pairs(length, devices, shards[0].run, step)
    return pairs.max() * devices * op.block_count / (length * (length + 1) / 2)


@cost_function("train.placed_attention", "train.placed_attention_grad")
def causal_work(context: CostContext) -> Cost:
    """
    Returns the cost of causal attention. Kernels skip keys that no query sees, and all
    devices wait for the busiest one. If all devices have equal work, the cost equals
    the cost of attention without positions.
    """
    return context.roofline(flops=context.flops * imbalance(context))


def _pages(op: PagedOp, sizes: PageSizes, table: Array) -> tuple[Array, Array]:
    """
    Returns the pool of each sequence, [batch, 1], and `table`. Raises DistIRError if the
    table names pages that the pools do not have.
    """
    if table.size and table.max() >= sizes.pages:
        raise DistIRError(
            f"{op.name}: the table names page {table.max()}, but each pool has "
            f"{sizes.pages} pages, from 0 on"
        )
    return np.arange(sizes.batch)[:, None] // max(sizes.sequences, 1), table


def _in_order(op: PagedOp, sizes: PageSizes, pool: Array, table: Array) -> Array:
    """Returns the tokens of all pages of each sequence: [batch, heads, slots, width]."""
    pools, pages = _pages(op, sizes, table)
    found = pool[pools, np.maximum(pages, 0)].swapaxes(1, 2)
    return found.reshape(*found.shape[:2], sizes.slots, found.shape[4])


@computes(PagedReadOp)
def paged_read(op: PagedReadOp, pool: Array, table: Array) -> Array:
    return _in_order(op, op.sizes, pool, table)


@computes(PagedWriteOp)
def paged_write(
    op: PagedWriteOp, pool: Array, new: Array, table: Array, first: Array
) -> Array:
    sizes = op.sizes
    pools, table = _pages(op, sizes, table)
    places = first[:, None] + np.arange(new.shape[2])
    columns = places // sizes.size
    pages = np.take_along_axis(table, columns.clip(0, sizes.columns - 1), axis=1)
    kept = (columns >= 0) & (columns < sizes.columns) & (pages >= 0)
    result = pool.copy()
    where = (np.broadcast_to(pools, pages.shape), pages, places % sizes.size)
    number, page, slot = (x[kept] for x in where)
    result[number, page, :, slot] = new.swapaxes(1, 2)[kept]
    return result


@computes(PagedAttentionOp)
def paged_attention(
    op: PagedAttentionOp,
    q: Array,
    keys: Array,
    values: Array,
    table: Array,
    mask: Array,
) -> Array:
    sizes = op.sizes
    groups = q.shape[1] // sizes.heads
    k, v = (
        np.repeat(_in_order(op, sizes, pool, table), groups, axis=1)
        for pool in (keys, values)
    )
    scores = q @ k.swapaxes(2, 3) * q.dtype.type(op.factor)
    is_boolean = mask.dtype == bool
    shown = np.where(mask, scores, -np.inf) if is_boolean else scores + mask
    return np.exp(shown - logsumexp_of(shown)[..., None]) @ v


cost_function("train.paged_write")(cache_write)


@cost_function("train.paged_read")
def read_cost(context: CostContext) -> Cost:
    """
    Returns the cost of reading the pages of a table and writing them in order. The op
    does not read pages that the table does not name.
    """
    op = context.op
    assert isinstance(op, PagedReadOp)
    pool, table = context.operand_bytes
    read = pool * prod(shape_of(op.result)) // prod(shape_of(op.pool))
    return context.roofline(moved=table + read + sum(context.result_bytes))


@cost_function("train.paged_attention")
def paged_cost(context: CostContext) -> Cost:
    """
    Returns the cost of attention over pages, by a kernel that reads the pages in place:
    all pages that sequences can fill, once each.
    """
    op = context.op
    assert isinstance(op, PagedAttentionOp)
    q, keys, values, *others = context.operand_bytes
    share = op.sizes.used / op.sizes.pages
    read = share * (keys + values)
    return context.roofline(moved=q + read + sum(others) + sum(context.result_bytes))
