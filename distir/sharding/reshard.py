"""
Finds the cheapest way from one layout to another.

`plan_reshard` searches chains of collectives, each over one mesh axis, for the chain
that moves the fewest bytes per device; an all-to-all may move several axes. It then
merges neighbouring steps of one kind into one collective over several axes. `partition`
calls `plan_reshard` to expand `dist.reshard`, and searches call it to price a reshard.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf, prod
from typing import Literal

from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.sharding.layout import (
    check_layout,
    joint_split,
    layout_problem,
    local_shape,
)
from distir.sharding.mesh import Mesh

StepKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice", "send"
]


@dataclass(frozen=True)
class ReshardStep:
    """
    A step of a reshard, with the layout of its result. The step is a collective over
    one or several mesh axes, or a send.
    """

    kind: StepKind
    axes: tuple[str, ...]
    layout: Layout


def bytes_moved(kind: StepKind, before: float, after: float, parts: int) -> float:
    """
    Returns the bytes that each device sends in a collective among `parts` devices,
    assuming a bandwidth-optimal algorithm. `before` and `after` are the local sizes in
    bytes before and after the collective.
    """
    share = (parts - 1) / parts
    match kind:
        case "all_reduce":
            return 2 * share * before
        case "all_gather":
            return share * after
        case "reduce_scatter" | "all_to_all":
            return share * before
        case "slice":
            return 0.0
        case "send":
            return before


def plan_reshard(
    before: Layout, after: Layout, shape: Sequence[int], mesh: Mesh
) -> list[ReshardStep]:
    """
    Returns the steps from `before` to `after` on one mesh that move the fewest bytes,
    and among these the fewest steps.

    Only chains that move each axis directly to its dimension in `after` are considered.
    Moving an axis to another dimension in between can save bytes, but costs more
    collectives. Raises DistIRError if there is no chain: a replicated value cannot
    become partial.
    """
    return Planner(after, shape, mesh).plan(before)


class Planner:
    """
    Plans reshards from many layouts to one layout `after`. The steps that are possible
    from a layout are computed once. Raises DistIRError if a tensor of the shape `shape`
    cannot have the layout `after`.
    """

    def __init__(self, after: Layout, shape: Sequence[int], mesh: Mesh):
        check_layout(shape, after, mesh, "reshard")
        self.after = after
        self.shape = tuple(shape)
        self.mesh = mesh
        self._steps: dict[Layout, list[tuple[float, ReshardStep]]] = {}
        self._sizes: dict[Layout, int] = {}

    def plan(self, before: Layout) -> list[ReshardStep]:
        """
        Returns the cheapest steps from the layout `before`. Raises DistIRError if no
        steps lead from it to the planner's layout.
        """
        steps = self.find(before)
        if steps is None:
            raise DistIRError(
                f"there is no way from layout {before} to {self.after}: a value cannot "
                f"become partial by communication"
            )
        return steps

    def find(self, before: Layout) -> list[ReshardStep] | None:
        """
        Returns the cheapest steps from the layout `before`, or None if no steps lead
        from it to the planner's layout.
        """
        order = count()
        queue: list[tuple[float, int, Layout, tuple[ReshardStep, ...]]] = [
            (0.0, next(order), before, ())
        ]
        done: set[Layout] = set()
        while queue:
            cost, _, layout, steps = heapq.heappop(queue)
            if layout == self.after:
                return _merged(steps, before, self.shape, self.mesh)
            if layout in done:
                continue
            done.add(layout)
            # A slice moves nothing, but should be done early; the small price per step
            # makes short chains win.
            for moved, step in self._from(layout):
                if step.layout not in done:
                    heapq.heappush(
                        queue,
                        (cost + moved + 1e-3, next(order), step.layout, (*steps, step)),
                    )
        return None

    def _from(self, layout: Layout) -> list[tuple[float, ReshardStep]]:
        """
        Returns the possible next steps from `layout`, each with the number of elements
        that it moves.
        """
        found = self._steps.get(layout)
        if found is None:
            size = self._size(layout)
            found = self._steps[layout] = [
                (
                    bytes_moved(
                        step.kind,
                        size,
                        self._size(step.layout),
                        prod(self.mesh.size(axis) for axis in step.axes),
                    ),
                    step,
                )
                for step in _moves(layout, self.after, len(self.shape))
                if len(step.axes) == 1 or self._is_possible(layout, step)
            ]
        return found

    def _is_possible(self, layout: Layout, step: ReshardStep) -> bool:
        """Whether one all-to-all over several axes can do `step` from `layout`."""
        return all(
            _joint_blocks(step.axes, each, self.shape, self.mesh)
            for each in (layout, step.layout)
        )

    def _size(self, layout: Layout) -> int:
        if layout not in self._sizes:
            local = local_shape(self.shape, layout, self.mesh)
            self._sizes[layout] = prod(local)
        return self._sizes[layout]


def _moves(layout: Layout, target: Layout, rank: int) -> Iterator[ReshardStep]:
    """
    Yields the possible steps over a single axis. An axis is added to a dimension only
    if it is the next axis of this dimension in `target`.
    """
    wanted = _wanted(layout, target, rank)
    target_partial = dict(target.partial)
    for axis, reduction in layout.partial:
        if target_partial.get(axis) == reduction:
            continue
        reduced = layout.without_partial([axis])
        yield ReshardStep("all_reduce", (axis,), reduced)
        if axis in wanted:
            dim, shard = wanted[axis]
            split = reduced.with_dim(dim, (*reduced.dim(dim), shard), rank)
            yield ReshardStep("reduce_scatter", (axis,), split)
    for dim in range(rank):
        shards = layout.dim(dim)
        # An axis may be gathered when something at or inside it must change.
        if not shards or shards == target.dim(dim)[: len(shards)]:
            continue
        axis = shards[-1].axis
        gathered = layout.with_dim(dim, shards[:-1], rank)
        yield ReshardStep("all_gather", (axis,), gathered)
        goals = _wanted(gathered, target, rank)
        if axis in goals and goals[axis][0] != dim:
            other, shard = goals[axis]
            moved = gathered.with_dim(other, (*gathered.dim(other), shard), rank)
            yield ReshardStep("all_to_all", (axis,), moved)
        yield from _joint_exchanges(layout, target, dim, rank)
    used = {*layout.split_axes, *layout.partial_axes}
    for axis, (dim, shard) in wanted.items():
        if axis not in used:
            split = layout.with_dim(dim, (*layout.dim(dim), shard), rank)
            yield ReshardStep("slice", (axis,), split)


def _joint_exchanges(
    layout: Layout, target: Layout, dim: int, rank: int
) -> Iterator[ReshardStep]:
    """
    Yields the steps that move several axes at once, in one all-to-all. They move the
    innermost axes of dimension `dim`, if these are the next axes of another dimension
    of `target`, in the same order. Chains of steps over single axes reach only the
    opposite order.
    """
    shards = layout.dim(dim)
    for first in range(len(shards) - 1):
        axes = tuple(shard.axis for shard in shards[first:])
        gathered = layout.with_dim(dim, shards[:first], rank)
        for other in range(rank):
            have, want = layout.dim(other), target.dim(other)
            added = want[len(have) : len(have) + len(axes)]
            if (
                other != dim
                and want[: len(have)] == have
                and tuple(shard.axis for shard in added) == axes
            ):
                moved = gathered.with_dim(other, (*have, *added), rank)
                yield ReshardStep("all_to_all", axes, moved)


def _wanted(layout: Layout, target: Layout, rank: int) -> dict[str, tuple[int, Shard]]:
    """
    Compares two layouts. Returns, by axis, the shards that `layout` needs next on the
    way to `target`, each with the index of the dimension that it splits.
    """
    found: dict[str, tuple[int, Shard]] = {}
    for dim in range(rank):
        have, want = layout.dim(dim), target.dim(dim)
        if len(want) > len(have) and want[: len(have)] == have:
            shard = want[len(have)]
            found[shard.axis] = (dim, shard)
    return found


def _merged(
    steps: Sequence[ReshardStep], before: Layout, shape: Sequence[int], mesh: Mesh
) -> list[ReshardStep]:
    """
    Merges neighbouring all-reduces of the same reduction, and neighbouring all-gathers
    of the same dimension.
    """
    out: list[ReshardStep] = []
    for step in steps:
        last = out[-1] if out else None
        start = out[-2].layout if len(out) > 1 else before
        if last is None or last.kind != step.kind:
            out.append(step)
        elif step.kind == "all_reduce" and _reduce_alike(
            (*last.axes, *step.axes), start
        ):
            out[-1] = replace(step, axes=(*last.axes, *step.axes))
        elif step.kind == "all_gather" and _gathers_at_once(
            # Gathering the innermost axis b and then a is gathering {a, b} at once.
            axes := (*step.axes, *last.axes),
            start,
            shape,
            mesh,
        ):
            out[-1] = replace(step, axes=axes)
        else:
            out.append(step)
    return out


def _reduce_alike(axes: Sequence[str], start: Layout) -> bool:
    """
    Whether the values in the layout `start` are terms of the same reduction over all
    `axes`.
    """
    partial = dict(start.partial)
    return len({partial[axis] for axis in axes}) == 1


def _gathers_at_once(
    axes: Sequence[str], start: Layout, shape: Sequence[int], mesh: Mesh
) -> bool:
    """Whether one all-gather can gather all `axes` of the layout `start`."""
    return _joint_blocks(axes, start, shape, mesh) == 1


def _joint_blocks(
    axes: Sequence[str], layout: Layout, shape: Sequence[int], mesh: Mesh
) -> int:
    """
    Returns the number of contiguous blocks in which `axes`, the innermost axes of a
    dimension, together split this dimension (1 unless the split is block-cyclic).
    Returns 0 if no collective can split or gather `axes` together.
    """
    dims = {
        dim
        for dim, shards in enumerate(layout.dims)
        for shard in shards
        if shard.axis in axes
    }
    if len(dims) > 1:
        return 0
    (dim,) = dims
    shards = layout.dim(dim)
    outer = prod(mesh.size(s.axis) for s in shards[: -len(axes)])
    try:
        return joint_split(shape[dim] // outer, shards[-len(axes) :], mesh)[0]
    except ValueError:
        return 0


def reshard_bytes(
    before: Layout, after: Layout, shape: Sequence[int], mesh: Mesh, itemsize: float
) -> float:
    """
    Returns the bytes per device that the cheapest reshard moves, or infinity if no
    steps lead to `after`. `itemsize` is the size of an element in bytes.
    """
    total = 0.0
    layout = before
    if layout_problem(shape, after, mesh) is not None:
        return inf
    steps = Planner(after, shape, mesh).find(before)
    if steps is None:
        return inf
    for step in steps:
        size = prod(local_shape(shape, layout, mesh))
        new_size = prod(local_shape(shape, step.layout, mesh))
        parts = prod(mesh.size(axis) for axis in step.axes)
        total += bytes_moved(step.kind, size, new_size, parts) * itemsize
        layout = step.layout
    return total
