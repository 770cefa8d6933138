"""Computes the `train` ops of mixtures of experts on arrays, and their costs."""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    CombineWeightsGradOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedOp,
    GroupedProductGradOp,
    GroupedProductOp,
    rows_of,
)
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.simulator.work import Product
from distir.interpreters.train.arithmetic import Array, computes


@computes(ExpertPlacesOp)
def expert_places(op: ExpertPlacesOp, ids: Array) -> tuple[Array, Array]:
    shards, groups, places = rows_of(op.rows)
    experts, capacity = op.experts.value.data, op.capacity.value.data
    own = experts // shards
    slots = np.full(ids.shape, -1, ids.dtype)
    rows = np.full((shards, groups, places), -1, ids.dtype)
    for group in range(groups):
        by_choice = ids[group].T.reshape(-1)  # all first choices come first
        found = np.full(by_choice.shape, -1, ids.dtype)
        for shard in range(shards):
            first = 0
            for expert in range(own):
                (chosen,) = np.nonzero(by_choice == shard * own + expert)
                kept = chosen[: min(capacity, places - first)]
                found[kept] = shard * places + first + np.arange(len(kept))
                rows[shard, group, first : first + len(kept)] = expert
                first += len(kept)
        slots[group] = found.reshape(ids.shape[:0:-1]).T
    return slots, rows


def _targets(slots: Array, places: int) -> tuple[Array, ...]:
    """
    Returns, for each choice that has a row, its group, token and choice index, and the
    shard and place of its row.
    """
    groups, tokens, choices = np.nonzero(slots >= 0)
    taken = slots[groups, tokens, choices]
    return groups, tokens, choices, taken // places, taken % places


@computes(DispatchOp)
def dispatch(
    op: DispatchOp, x: Array, slots: Array, rows: Array, *weights: Array
) -> Array:
    out = np.zeros(shape_of(op.result), x.dtype)
    groups, tokens, choices, shards, places = _targets(slots, rows.shape[2])
    values = x[groups, tokens]
    if weights:
        values = values * weights[0][groups, tokens, choices][:, None]
    out[shards, groups, places] = values
    return out


@computes(CombineOp)
def combine(
    op: CombineOp, x: Array, slots: Array, rows: Array, *weights: Array
) -> Array:
    out = np.zeros((*slots.shape[:2], x.shape[3]), x.dtype)
    groups, tokens, choices, shards, places = _targets(slots, x.shape[2])
    values = x[shards, groups, places]
    if weights:
        values = values * weights[0][groups, tokens, choices][:, None]
    np.add.at(out, (groups, tokens), values)
    return out


@computes(CombineWeightsGradOp)
def combine_weights_gradient(
    op: CombineWeightsGradOp, x: Array, slots: Array, dy: Array
) -> Array:
    out = np.zeros(slots.shape, x.dtype)
    groups, tokens, choices, shards, places = _targets(slots, x.shape[2])
    products = x[shards, groups, places] * dy[groups, tokens]
    out[groups, tokens, choices] = products.sum(1)
    return out


def _experts(rows: Array, matrices: int) -> Array:
    """
    Returns the index of each row's expert among all `matrices` experts, or -1 for an
    empty row.
    """
    shards = rows.shape[0]
    first = np.arange(shards)[:, None, None] * (matrices // shards)
    return np.where(rows < 0, -1, rows + first)


@computes(GroupedProductOp)
def grouped_product(op: GroupedProductOp, x: Array, rows: Array, w: Array) -> Array:
    out = np.zeros(shape_of(op.result), x.dtype)
    experts = _experts(rows, len(w))
    for expert, matrix in enumerate(w):
        own = experts == expert
        out[own] = x[own] @ (matrix.T if op.transposed is not None else matrix)
    return out


@computes(GroupedProductGradOp)
def grouped_product_gradient(
    op: GroupedProductGradOp, x: Array, rows: Array, dy: Array
) -> Array:
    out = np.zeros(shape_of(op.matrices), x.dtype)
    experts = _experts(rows, len(out))
    if op.transposed is not None:
        x, dy = dy, x
    for expert in range(len(out)):
        own = experts == expert
        out[expert] = x[own].T @ dy[own]
    return out


@cost_function("train.grouped_product", "train.grouped_product_grad")
def grouped_cost(context: CostContext) -> Cost:
    """
    Returns the cost of a grouped product: one matrix product for each expert on the
    device. The tokens of a device are assumed to be divided evenly among its experts.
    """
    op, work = context.op, context.work
    rule = work.rule
    of_matrices = (
        rule.operands[2] if isinstance(op, GroupedProductOp) else rule.results[0]
    )
    experts, a, b = (prod(map(work.size, dim)) for dim in of_matrices)
    flops = work.flops * context.load
    rows = ceil(flops / (2 * experts * a * b))
    assert isinstance(op, GroupedOp)
    k, n = (a, b) if op.transposed is None else (b, a)
    product = Product(experts, rows, n, k)
    if isinstance(op, GroupedProductGradOp):
        product = Product(experts, a, b, rows)
    return context.roofline(flops=flops, product=product)
