"""The plans that `auto-parallel` starts from, and those next to a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import MeshOp
from distir.errors import DistIRError
from distir.planning.plan import Axes, GridPlan, LayoutPlan, Plan, Space

AXES = "dtsu"
"""
Names of the axes of meshes that layouts are searched on, outermost first; requests know the
first two.
"""

_SCHEDULES = ("", "interleaved-1f1b", "zb-h1", "interleaved-zero-bubble", "zbv")

POLICIES_BY_COST = ("none", "selective", "full")
"""Checkpoint policies, from the one that recomputes the least on."""


def own_axes(modules: Sequence[ModuleOp]) -> Axes:
    """The axes of the mesh that these programs have in common, if any. Raises DistIRError."""
    found = [
        tuple(op.axes.data for op in module.body.block.ops if isinstance(op, MeshOp))
        for module in modules
    ]
    if len(set(found)) > 1 or any(len(meshes) > 1 for meshes in found):
        raise DistIRError(
            "auto-parallel works on one mesh at most, the same for all programs; remove "
            "the others, or all of them to have one found"
        )
    return found[0][0] if found[0] else ()


@dataclass(frozen=True)
class AutoSpace:
    """
    The plans that `auto-parallel` may choose from.

    - `batches`, `trains`, `devices`, `degrees`: as in `Space`;
    - `own_axes`: those of the mesh that the program has, on which layouts are then
      searched, and nothing else; `asked_axes`: those that the user's requests name;
    - `micro_batches`, `zero`, `checkpoint`, `schedules`, `overlap`: the only values of these
      options; by default all;
    - `c`: degrees of context parallelism, of plans of the grid;
    - `buckets`: whether neighbouring tensors travel in one message, in all plans.
    """

    batches: Sequence[int]
    trains: bool
    devices: int
    degrees: Sequence[tuple[int, int, int]] = ()
    own_axes: Axes = ()
    asked_axes: frozenset[str] = frozenset()
    micro_batches: Sequence[int] = ()
    zero: Sequence[int] = (0, 1, 2, 3)
    checkpoint: Sequence[str] = POLICIES_BY_COST
    schedules: Sequence[str] = ()
    c: Sequence[int] = (1,)
    overlap: Sequence[bool] = (False, True)
    buckets: bool = True

    def first(self) -> list[Plan]:
        """
        What the search starts from: searched layouts for each way to make a mesh of the
        devices, and the grid of `distir search` (its first ZeRO stage, checkpoint policy
        and schedule). Raises DistIRError if there is nothing.
        """
        checkpoint = self.checkpoint[0] if self.trains else "none"
        meshes = [self.own_axes] if self.own_axes else list(self._meshes())
        found: list[Plan] = [
            LayoutPlan(
                batch,
                checkpoint=checkpoint,
                overlap=self.overlap[0],
                buckets=self.buckets,
                axes=axes,
            )
            for batch in self.batches
            for axes in meshes
        ]
        if self.own_axes:
            return found
        grid = Space(
            batches=self.batches,
            trains=self.trains,
            devices=self.devices,
            degrees=self.degrees,
            micro_batches=self.micro_batches,
            zero=self.zero[:1] if self.trains else (0,),
            checkpoint=(checkpoint,),
            schedules=self.schedules[:1],
            c=self.c,
            overlap=self.overlap[:1],
            buckets=self.buckets,
        )
        return [*(grid.known() if found else grid.plans()), *found]

    def _meshes(self) -> Iterator[Axes]:
        """
        All meshes of one or two axes: their order says which of them is the inner one, whose
        devices are neighbours. Where degrees are given, those without a pipeline, by their
        names. Meshes of more axes are next to the best of these.
        """
        if self.degrees:
            for d, t, p in self.degrees:
                if p == 1 and d * t > 1:
                    yield self._axes_of(d, t)
            return
        sizes = [n for n in range(2, self.devices + 1) if self.devices % n == 0]
        for outer in sizes:
            inner = self.devices // outer
            yield self._axes_of(outer, inner)

    def neighbours(self, plan: Plan) -> Iterator[Plan]:
        """The plans that differ from one in one option."""
        if self.trains:
            for checkpoint in self.checkpoint:
                yield replace(plan, checkpoint=checkpoint)
        if isinstance(plan, GridPlan):
            yield from self._next_on_grid(plan)
        elif isinstance(plan, LayoutPlan):
            for overlap in self.overlap:
                yield replace(plan, overlap=overlap)
            if not self.own_axes:
                yield from self._next_to_searched(plan)

    def _next_on_grid(self, c: GridPlan) -> Iterator[Plan]:
        """
        The neighbours of a plan without searched layouts: other options, and searched
        layouts.
        """
        if self.trains and c.d > 1:
            for zero in self.zero:
                yield replace(c, zero=zero)
        yield from self._pipelines(c, c.batch // c.d)
        if c.devices > 1:
            for overlap in self.overlap:
                yield replace(c, overlap=overlap)
        if c.p > 1 and c.d * c.t > 1 and c.c == 1:
            # The same pipeline with searched layouts.
            yield c.searched(self._axes_of(c.d, c.t))

    def smaller(self, plan: LayoutPlan) -> Iterator[LayoutPlan]:
        """
        Instead of searched layouts that do not fit: the same without a pipeline on more
        micro-batches, which leaves less of their activations.
        """
        if not self.trains or plan.p > 1 or self.own_axes:
            return
        counts = sorted(self.micro_batches) or (4 * plan.k,)
        for k in [k for k in counts if plan.k < k <= plan.batch][:1]:
            yield replace(plan, k=k)

    def _pipelines(self, c: Plan, most: int) -> Iterator[Plan]:
        """Other stages, schedules and numbers of micro-batches, `most` at most."""
        if c.p > 1:
            yield replace(c, stages="search")
            schedules = self.schedules or (_SCHEDULES if self.trains else ())
            for schedule in schedules:
                yield replace(c, schedule=schedule, stages="")
        if c.p > 1 or self.trains:
            for k in self.micro_batches or (c.k // 2, c.k * 2):
                if most >= k >= (2 if c.p > 1 else 1):
                    yield replace(c, k=k)

    def _next_to_searched(self, c: LayoutPlan) -> Iterator[Plan]:
        """
        The neighbours of a plan with searched layouts: other pipelines; an axis that is
        two axes; a pipeline of twice or half as many ranks on meshes of half or twice
        the size.
        """
        yield from self._pipelines(c, c.batch)
        sizes = [size for _, size in c.axes]
        if self.degrees:
            return
        for i, size in enumerate(sizes):
            for outer in range(2, size) if len(sizes) < len(AXES) else ():
                if size % outer == 0:
                    split = [*sizes[:i], outer, size // outer, *sizes[i + 1 :]]
                    yield replace(c, axes=self._named(split))
            if size % 2 == 0:
                rest = [n for n in (*sizes[:i], size // 2, *sizes[i + 1 :]) if n > 1]
                schedule = c.schedule or (*self.schedules, "")[0]
                for k in self._first_micro_batches(c) if rest else ():
                    yield replace(
                        c, p=2 * c.p, k=k, axes=self._named(rest), schedule=schedule
                    )
            if c.p % 2 == 0:
                larger = [*sizes[:i], 2 * size, *sizes[i + 1 :]]
                schedule = c.schedule if c.p > 2 else ""
                stages = c.stages if c.p > 2 else ""
                yield replace(
                    c,
                    p=c.p // 2,
                    axes=self._named(larger),
                    schedule=schedule,
                    stages=stages,
                )

    def _first_micro_batches(self, c: Plan) -> Sequence[int]:
        """Those of a pipeline of twice as many ranks."""
        counts = self.micro_batches or (max(c.k, 4 * c.p),)
        return [c.k] if c.p > 1 else [k for k in counts if 2 <= k <= c.batch]

    def _axes_of(self, d: int, t: int) -> Axes:
        """The axes of a mesh of d x t devices, by these names if degrees are given."""
        if self.degrees:
            return tuple((n, s) for n, s in (("d", d), ("t", t)) if s > 1)
        return self._named([n for n in (d, t) if n > 1])

    def _named(self, sizes: Sequence[int]) -> Axes:
        """The axes of a mesh of these sizes."""
        names = AXES
        if len(sizes) == 1 and self.asked_axes == frozenset(AXES[1]):
            names = AXES[1:]
        return tuple(zip(names, sizes, strict=False))
