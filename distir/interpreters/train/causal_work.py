"""What a causal mask leaves to each device that has a part of a sequence."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
import numpy.typing as npt

from distir.dialects.dist import layout_of
from distir.dialects.train_ops.causal_attention import CausalAttentionOp
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)


@cache
def seen_pairs(
    length: int, devices: int, run: int | None = None, step: int | None = None
) -> npt.NDArray[np.int64]:
    """
    For each device how many pairs of a query of its own and a key that this sees there are, in
    a sequence that is dealt out to `devices` in runs of `run` (None: the contiguous split):
    keys of the device `step` places before it, or, where that is None, of all.
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
    By how much the device with the most to do exceeds an equal share of what a causal mask
    leaves; 1 where queries are not split.
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
    Kernels skip what no query sees, and all wait for the slowest device. What is equally
    dealt out counts as it does without positions.
    """
    return context.roofline(flops=context.flops * imbalance(context))
