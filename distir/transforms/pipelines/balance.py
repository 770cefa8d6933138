"""Divides a program into pipeline stages of equal work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import Layout, layout_of
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.prices import (
    PRICE_PER_BYTE_SENT,
    PRICE_PER_BYTE_TOUCHED,
    local_bytes,
)
from distir.sharding.rule import infer, rule_for
from distir.transforms.pipelines.structure import Structure

Floats = npt.NDArray[np.float64]

HALVINGS = 50
"""The number of times that the interval is halved in the search for the least load."""


class StageWork:
    """
    The cost of ops on each device of a stage, for a whole batch, derived from sharding
    rules. Costs are in floating-point operations. `mesh` is the stage's mesh, whose
    axes are the axes of the program's mesh, with the same or smaller sizes.
    """

    def __init__(self, structure: Structure, mesh: Mesh):
        self.program_mesh, self.mesh = structure.mesh, mesh
        self.functions = structure.functions
        self.of_function: Callable[[str], float] = cache(self._function)

    def of(self, op: Operation) -> float:
        """
        Returns the work of `op` on a device in floating-point operations. The work of a
        call is the work of the called function.
        """
        if isinstance(op, CallOp):
            return self.of_function(op.callee.string_value())
        rule = rule_for(op)
        split = rule.parts_on(self.mesh)
        if rule.flops:
            whole = Layout(self.mesh.name)
            layouts = [layout_of(v) or whole for v in op.operands]
            assignment = infer(rule, layouts, self.program_mesh).assignment
            for shards in assignment.values():
                for shard in shards:
                    if shard.axis != TIME_AXIS:
                        split *= self.mesh.size(shard.axis)
        touched = sum(self.bytes(v) for v in (*op.operands, *op.results))
        return rule.flops / split + PRICE_PER_BYTE_TOUCHED * touched

    def bytes(self, value: SSAValue) -> float:
        """Returns the number of bytes of `value` on each device."""
        return local_bytes(value, layout_of(value) or Layout(""), self.mesh)

    def _function(self, name: str) -> float:
        return sum(self.of(op) for op in self.functions[name].body.block.ops)


def layer_positions(ops: Sequence[Operation]) -> list[int]:
    """
    Returns the positions of the layers in `ops`. Layers are calls, and ops that
    multiply matrices or convolve.
    """
    return [
        i for i, op in enumerate(ops) if isinstance(op, CallOp) or rule_for(op).flops
    ]


def layers_before(ops: Sequence[Operation]) -> npt.NDArray[np.int64]:
    """
    Returns an array with the number of layers before each op, followed by the number of
    all layers.
    """
    layers = np.zeros(len(ops) + 1, np.int64)
    layers[1:][layer_positions(ops)] = 1
    return np.cumsum(layers)


def balanced_starts(
    structure: Structure,
    meshes: Sequence[Mesh],
    ranges: Sequence[tuple[int, int]] | None = None,
) -> list[int]:
    """
    Returns the positions among the forward ops at which stages 1, 2, ... begin. The
    work of the busiest stage, including receiving, is as small as possible. Among
    equally good divisions, the division that sends the fewest bytes is chosen. `meshes`
    has the mesh of each stage.

    Each stage has at least one layer, so there must be at least as many layers as
    stages. `ranges`, if given, has for each of the stages 1, 2, ... the first and the
    last position at which the stage may begin, and a stage then needs only one op
    instead of one layer. Returns an empty list if no division is possible.
    """
    ops = structure.forward
    known = {mesh: StageWork(structure, mesh) for mesh in meshes}
    weights = {m: np.array([work.of(op) for op in ops]) for m, work in known.items()}
    crossing = {m: _crossing(ops, work) for m, work in known.items()}
    prices = PRICE_PER_BYTE_SENT * np.array([crossing[mesh] for mesh in meshes])
    layers = layers_before(ops)
    if ranges is not None:
        layers = np.arange(len(ops) + 1)
        for stage, (first, last) in enumerate(ranges, 1):
            prices[stage, :first] = prices[stage, last + 1 :] = np.inf
    loads = np.array([weights[mesh] for mesh in meshes])
    return division(loads, prices, layers)


def division(
    weights: Floats, crossing: Floats, layers: npt.NDArray[np.int64]
) -> list[int]:
    """
    Returns the positions at which to cut a sequence into consecutive parts. Minimises
    the largest load of a part by bisection. Among the best divisions, returns the
    division with the lowest sum of cut prices.

    - `weights[s, i]`: the load of element i in part s;
    - `crossing[s, i]`: the price of a cut before element i at the start of part s,
      which counts as load of part s; infinite if part s cannot begin there;
    - `layers[i]`: the number of layers before element i. Each part has at least one
      layer.

    Returns an empty list if no division is possible.
    """
    count = len(weights)
    total = np.concatenate((np.zeros((count, 1)), np.cumsum(weights, axis=1)), axis=1)
    # A stretch from i may end at first_end[i] or later, where it has a layer.
    first_end = np.searchsorted(layers, layers + 1)
    low = float(total[:, -1].min()) / count
    high = float(total[:, -1].max() + crossing[np.isfinite(crossing)].max())
    if not _fits(high, total, crossing, first_end):
        return []
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _fits(middle, total, crossing, first_end):
            high = middle
        else:
            low = middle
    return _cheapest(high, total, crossing, first_end)


def _last_end(load: float, total: Floats, crossing: Floats) -> npt.NDArray[Any]:
    """
    Returns, for each part of the sequence and each position at which the part may
    start, the last position at which the part may end if its load is at most `load`.
    """
    return np.array(
        [
            np.searchsorted(own, load + own - price, side="right") - 1
            for own, price in zip(total, crossing, strict=True)
        ]
    )


def _fits(
    load: float,
    total: Floats,
    crossing: Floats,
    first_end: npt.NDArray[Any],
) -> bool:
    """
    Whether the sequence can be cut into parts with loads of at most `load`. `first_end`
    has, for each start, the first position at which a part may end.
    """
    size = total.shape[1]
    reached = np.zeros(size, bool)
    reached[0] = True
    for last_end in _last_end(load, total, crossing):
        starts = np.flatnonzero(reached & (first_end <= last_end))
        changes = np.zeros(size + 1, np.int64)
        np.add.at(changes, first_end[starts], 1)
        np.add.at(changes, last_end[starts] + 1, -1)
        reached = np.cumsum(changes[:size]) > 0
    return bool(reached[-1])


def _cheapest(
    load: float,
    total: Floats,
    crossing: Floats,
    first_end: npt.NDArray[Any],
) -> list[int]:
    """
    Returns the cuts with the lowest total price, for parts with loads of at most
    `load`. `first_end` has, for each start, the first position at which a part may end.
    """
    count, size = total.shape
    last_end = _last_end(load, total, crossing)
    price = np.full((count + 1, size), np.inf)
    price[0, 0] = 0.0
    came = np.zeros((count + 1, size), np.int64)
    for end in range(1, size):
        reaches = last_end[:, :end].max(axis=0) >= end
        starts = np.flatnonzero((first_end[:end] <= end) & reaches)
        if not len(starts):
            continue
        options = price[:-1, starts] + crossing[:, starts]
        options[last_end[:, starts] < end] = np.inf
        chosen = options.argmin(axis=1)
        price[1:, end] = options[np.arange(count), chosen]
        came[1:, end] = starts[chosen]
    cuts: list[int] = []
    end = size - 1
    for stage in range(count, 1, -1):
        end = int(came[stage, end])
        cuts.append(end)
    return cuts[::-1]


def _crossing(ops: Sequence[Operation], work: StageWork) -> Floats:
    """
    Returns, for each position, the number of bytes that would be sent if a stage began
    there: the results of ops before the position that later ops use.
    """
    place = {op: i for i, op in enumerate(ops)}
    changes = np.zeros(len(ops) + 2)
    for i, op in enumerate(ops):
        for result in op.results:
            uses = [place[u.operation] for u in result.uses if u.operation in place]
            if uses:
                size = work.bytes(result)
                changes[i + 1] += size
                changes[max(uses) + 1] -= size
    return np.maximum(np.cumsum(changes[:-1]), 0.0)
