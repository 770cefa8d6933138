"""The plans that `auto-parallel` starts from, and the neighbours of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import MeshOp
from distir.errors import DistIRError
from distir.pipelining import SCHEDULES
from distir.planning.distribution.distribute import CONTEXTS
from distir.planning.plans.plan import Axes, GridPlan, LayoutPlan, Plan, Space
from distir.transforms.memory.checkpoint_policies import LayerPolicies

AXES = "dtsu"
"""
The names of the mesh axes on which layouts are searched, outermost first. The user's
requests can name the first two.
"""

_SCHEDULES = ("", "interleaved-1f1b", "zb-h1", "interleaved-zero-bubble", "zbv")

POLICIES_BY_COST = ("none", "selective", "products", "full")
"""
The checkpoint policies, ordered from the one that recomputes least to the one that
recomputes most. Recomputing only a part of the layers is often the best that fits
(Slapo, Chen et al. 2024); the number of layers is found for good plans only
(`recomputation`).
"""


def own_axes(modules: Sequence[ModuleOp]) -> Axes:
    """
    Returns the axes of the mesh that `modules` declare, or an empty tuple if they
    declare none. Raises DistIRError if a program declares several meshes or the
    programs declare different ones.
    """
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
    - `node`: the number of devices that the fastest links connect;
    - `own_axes`: the axes of a mesh that the program declares; if there are any,
      layouts are searched on this mesh only;
    - `asked_axes`: the axes that the user's requests name;
    - `micro_batches`, `zero`, `checkpoint`, `schedules`, `overlap`: the allowed values
      of these options; by default all;
    - `c`, `e`: the degrees of context and of expert parallelism in plans of the grid;
    - `expert_axes`: the sets of axes over which experts may be distributed; plans start
      with the first set;
    - `next_c`: the degrees of context parallelism that neighbours of plans may have;
    - `r`: the allowed numbers of groups that each hold a copy of the tensors that ZeRO
      splits; by default all;
    - `no_sync`: whether ZeRO 3 may sum whole gradients over micro-batches;
    - `offload_states`: whether the optimizer states may be in the host's memory;
    - `buckets`: whether all plans merge collectives of neighbouring tensors into one
      message.
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
    next_c: Sequence[int] = (1,)
    e: Sequence[int] = (1,)
    expert_axes: Sequence[str] = ("e",)
    r: Sequence[int] = ()
    no_sync: Sequence[bool] = (False, True)
    offload_states: Sequence[bool] = (False, True)
    overlap: Sequence[bool] = (False, True)
    buckets: bool = True
    node: int = 8

    def first(self) -> list[Plan]:
        """
        Returns the plans of the first round. They are plans with searched layouts, one
        for each mesh of all devices, and the grid of `distir search` with the first
        allowed ZeRO stage, checkpoint policy and schedule. Raises DistIRError if there
        are none.
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
            e=self.e,
            expert_axes=self.expert_axes[:1],
            r=self.r or (1,),
            no_sync=self.no_sync[:1],
            offload_states=self.offload_states[:1] if self.trains else (False,),
            overlap=self.overlap[:1],
            buckets=self.buckets,
        )
        return [*(grid.known() if found else grid.plans()), *found]

    def frugal(
        self, batches: Sequence[int], may_fit: Callable[[Plan], bool]
    ) -> list[GridPlan]:
        """
        Returns plans of the grid that need little memory. They recompute as much as is
        allowed, split the optimizer states, and use micro-batches of one sample.
        Tensor, pipeline and expert parallelism together divide the parameters over the
        fewest devices that suffice according to `may_fit`, or over twice as many. All
        combinations of these degrees are returned in which tensor parallelism stays
        within a node. Plans with small degrees come first, as every kind of parallelism
        is slow at a large degree, and tensor parallelism the most.
        """
        plans = self._with_little_memory(
            batches, 1 if 1 in self.zero else self.zero[-1], may_fit
        )
        plans = [p for p in plans if p.t <= self.node] or plans
        fewest = min(map(_parts, plans), default=0)
        return sorted(
            (p for p in plans if _parts(p) in (fewest, 2 * fewest)),
            key=lambda p: (p.batch, p.t + max(p.t, p.p, p.e), p),
        )

    def surest(
        self, batches: Sequence[int], may_fit: Callable[[Plan], bool]
    ) -> list[GridPlan]:
        """
        Returns the plans of the grid that most surely fit, the surest first. As in
        `frugal`, they recompute as much as is allowed and use micro-batches of one
        sample. ZeRO 3 divides parameters and gradients over all devices. Plans that
        divide activations over the most devices come first, with tensor parallelism
        within a node and few pipeline ranks.
        """
        plans = self._with_little_memory(batches, max(self.zero), may_fit)
        plans = [p for p in plans if p.t <= self.node] or plans
        return sorted(plans, key=lambda p: (p.batch, -p.t * p.e, p.p, p))

    def _with_little_memory(
        self, batches: Sequence[int], zero: int, may_fit: Callable[[Plan], bool]
    ) -> list[GridPlan]:
        """
        Returns one plan for each way in which the grid divides the program, if
        `may_fit` returns True for the plan. The plan recomputes as much as is allowed,
        has ZeRO stage `zero`, and has as many micro-batches as possible. Plans that
        keep optimizer states in the host's memory are returned only if `may_fit` is
        False for all plans without this option.
        """
        if not self.trains or self.own_axes:
            return []
        grid = Space(
            batches=batches,
            trains=True,
            devices=self.devices,
            degrees=self.degrees,
            micro_batches=self.micro_batches or _halved(batches),
            zero=(zero,),
            checkpoint=self.checkpoint[-1:],
            schedules=self.schedules[:1],
            offload_states=self.offload_states,
            e=self.e,
            expert_axes=self.expert_axes[:1],
            overlap=self.overlap[:1],
            buckets=self.buckets,
        )
        most: dict[tuple[int, ...], GridPlan] = {}
        for plan in grid.known():
            key = plan.batch, plan.d, plan.t, plan.p, plan.e, plan.offload_states
            if key not in most or plan.k > most[key].k:
                most[key] = plan
        fitting = list(filter(may_fit, most.values()))
        # The host's memory is slow: it is for what does not fit otherwise.
        return [plan for plan in fitting if not plan.offload_states] or fitting

    def _meshes(self) -> Iterator[Axes]:
        """
        Yields all meshes of one or two axes. Both orders of two axes occur, as the
        devices of the inner axis are neighbours. If degrees are given, yields only the
        meshes of degrees without a pipeline, with axes d and t. Meshes of more axes are
        found later, as neighbours of the best of these.
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
        """
        Yields the neighbours of `plan`: the plans that differ from `plan` in one
        option.
        """
        if self.trains and plan.checkpoint not in self.checkpoint:
            # Numbers of layers hold for one use of memory: with another one they are found
            # anew, from plans with one policy. Those without any are tried where they do
            # not fit but would be faster.
            yield from self._refined(plan)
            of_layers = LayerPolicies.of(plan.checkpoint, "search")
            for policy in (of_layers.policy, of_layers.others):
                if policy != "none":
                    yield from self.neighbours(replace(plan, checkpoint=policy))
            return
        if self.trains:
            for checkpoint in self._next_policies(plan.checkpoint):
                yield replace(plan, checkpoint=checkpoint)
        yield from self._with_other_options(plan)

    def _with_other_options(self, plan: Plan) -> Iterator[Plan]:
        """
        Yields the plans that differ from `plan` in one option other than the checkpoint
        policy.
        """
        if isinstance(plan, GridPlan):
            yield from self._next_on_grid(plan)
        elif isinstance(plan, LayoutPlan):
            for overlap in self.overlap:
                yield replace(plan, overlap=overlap)
            if not self.own_axes:
                yield from self._next_to_searched(plan)

    def _refined(self, plan: Plan) -> Iterator[Plan]:
        """
        Yields two variants of `plan`: one with overlap and one with searched stages.
        """
        devices = not isinstance(plan, GridPlan) or plan.devices > 1
        for overlap in self.overlap if devices else ():
            yield replace(plan, overlap=overlap)
        if plan.p > 1:
            yield replace(plan, stages="search")

    def _next_policies(self, policy: str) -> list[str]:
        """
        Returns the checkpoint policies to try next, in order: the policies that
        recompute the least and the most, and the policies that recompute slightly less
        and slightly more than `policy`.
        """
        known = list(self.checkpoint)
        place = known.index(policy)
        near = {0, len(known) - 1, max(place - 1, 0), place + 1}
        return [other for index, other in enumerate(known) if index in near]

    def _next_on_grid(self, c: GridPlan) -> Iterator[Plan]:
        """
        Yields the neighbours of a plan of the grid: the plans of the grid that differ
        from it in one option, and the same plan with searched layouts.
        """
        if self.trains and c.d * c.e > 1:
            for zero in self.zero:
                yield replace(c, zero=zero, no_sync=c.no_sync and zero == 3)
            if c.zero == 3 and c.k > 1:
                yield from (replace(c, no_sync=on) for on in self.no_sync)
            if c.zero and not self.degrees:
                yield from self._next_groups(c)
        if self.trains:
            yield from (replace(c, offload_states=on) for on in self.offload_states)
        if not self.degrees:
            yield from self._next_contexts(c)
            if len(self.e) > 1:
                yield from self._next_degrees(c)
        if c.t > 1 and self.trains and c.expert_axes == "e":
            yield replace(c, sequence_parallel=not c.sequence_parallel)
        if max(self.e) > 1:
            folded = map(c.folded, self.expert_axes)
            yield from (plan for plan in folded if plan)
        yield from self._pipelines(c, c.batch // c.batch_parts)
        if c.devices > 1:
            for overlap in self.overlap:
                yield replace(c, overlap=overlap)
        if c.p > 1 and c.d * c.t > 1 and c.c * c.e * c.r == 1:
            # The same pipeline with searched layouts.
            yield c.searched(self._axes_of(c.d, c.t))

    def _next_groups(self, c: GridPlan) -> Iterator[GridPlan]:
        """
        Yields two plans: `c` with twice and with half the number of groups that each
        hold a copy of the tensors that ZeRO splits. The number of devices stays the
        same.
        """
        if c.d % 2 == 0 and (2 * c.r in self.r or not self.r) and c.d > 2:
            yield replace(c, d=c.d // 2, r=2 * c.r)
        if c.r % 2 == 0 and (c.r // 2 in self.r or not self.r):
            yield replace(c, d=2 * c.d, r=c.r // 2)

    def _next_degrees(self, c: GridPlan) -> Iterator[GridPlan]:
        """
        Yields plans that differ from `c` in two of the degrees of data, tensor,
        pipeline and expert parallelism: one degree is half as large, and a second one
        is twice as large. The size of micro-batches does not change. These plans are
        for models with experts: these models have so many combinations of degrees that
        a search may not reach all of them.
        """
        for less, more in permutations("dtpe", 2):
            if getattr(c, less) % 2:
                continue
            sizes = {less: getattr(c, less) // 2, more: 2 * getattr(c, more)}
            other = replace(c, **sizes)
            k, rest = divmod(c.k * c.batch_parts, other.batch_parts)
            if rest or other.e not in self.e or k < (2 if other.p > 1 else 1):
                continue
            zero = other.zero if other.d * other.e > 1 else 0
            schedule = other.schedule or (*self.schedules, "")[0]
            # Experts over axes that all have a size above 1, if there is such a set.
            sets = (other.expert_axes, *self.expert_axes)
            other = next(filter(None, map(other.folded, sets)), None)
            if other is None:
                continue
            yield replace(
                other,
                k=k,
                no_sync=other.no_sync and k > 1,
                zero=zero,
                schedule=schedule if other.p > 1 else "",
                stages=other.stages if other.p > 1 else "",
                chunks=other.chunks if other.p > 1 else 0,
            )

    def _next_contexts(self, c: GridPlan) -> Iterator[GridPlan]:
        """
        Yields plans that differ from `c` in the degree of context parallelism or in the
        way to exchange keys. In these plans, experts are split only over axes that the
        new degrees allow.
        """
        for plan in self._other_contexts(c):
            sets = (plan.expert_axes, *self.expert_axes)
            yield from [*filter(None, map(plan.folded, sets))][:1]

    def _other_contexts(self, c: GridPlan) -> Iterator[GridPlan]:
        """
        Yields plans with twice and with half the degree of context parallelism. The
        degree of data or tensor parallelism changes the opposite way, so that the
        number of devices does not change. If `c` splits sequences, also yields a plan
        for each way to exchange keys and values between devices.
        """
        if 2 * c.c in self.next_c:
            if c.d % 2 == 0 and (c.d > 2 or c.r == 1):
                zero = c.zero if c.d * c.e > 2 else 0
                no_sync = c.no_sync and zero == 3
                yield replace(c, d=c.d // 2, c=2 * c.c, zero=zero, no_sync=no_sync)
            if c.t % 2 == 0:
                yield replace(c, t=c.t // 2, c=2 * c.c)
        if c.c % 2 == 0 and c.c // 2 in self.next_c:
            # Plans without context parallelism have one name.
            context = c.context if c.c > 2 else CONTEXTS[0]
            fewer = replace(c, c=c.c // 2, context=context)
            if c.batch % (2 * c.batch_parts * c.k) == 0:
                yield replace(fewer, d=2 * c.d)
            yield replace(fewer, t=2 * c.t)
        if c.c > 1:
            yield from (replace(c, context=context) for context in CONTEXTS)

    def smaller(self, plan: LayoutPlan) -> Iterator[LayoutPlan]:
        """
        Yields alternatives to a plan whose searched layouts do not fit. They have the
        same options, no pipeline and more micro-batches, which makes activations
        smaller. Plans with several pipeline ranks have no such alternatives.
        """
        if not self.trains or plan.p > 1 or self.own_axes:
            return
        counts = sorted(self.micro_batches) or (4 * plan.k,)
        for k in [k for k in counts if plan.k < k <= plan.batch][:1]:
            yield replace(plan, k=k)

    def _pipelines(self, c: Plan, most: int) -> Iterator[Plan]:
        """
        Yields plans that differ from `c` in their stages, schedule or number of
        micro-batches, up to `most` micro-batches.
        """
        if c.p > 1:
            yield replace(c, stages="search")
            schedules = self.schedules or (_SCHEDULES if self.trains else ())
            for schedule in schedules:
                yield replace(c, schedule=schedule, stages="", chunks=0)
            yield from self._next_chunks(c)
        if c.p > 1 or self.trains:
            for k in self.micro_batches or (c.k // 2, c.k * 2):
                if most >= k >= (2 if c.p > 1 else 1):
                    yield with_micro_batches(c, k)

    def _next_chunks(self, c: Plan) -> Iterator[Plan]:
        """
        Yields `c` with twice and with half as many stages per rank, if its schedule can
        have them. More stages make the bubble of an interleaved pipeline shorter.
        """
        kind = SCHEDULES.get(c.schedule)
        if kind is None:
            return
        chunks = c.chunks or kind.least_chunks
        for other in (2 * chunks, chunks // 2):
            if kind.least_chunks <= other <= (kind.most_chunks or other):
                # The fewest stages have one name.
                yield replace(c, chunks=0 if other == kind.least_chunks else other)

    def _next_to_searched(self, c: LayoutPlan) -> Iterator[Plan]:
        """
        Yields the neighbours of a plan with searched layouts. A neighbour has one of
        these changes: different pipeline options, one mesh axis split into two, a
        factor of two moved from one axis to another, or twice (or half) as many
        pipeline ranks on a mesh of half (or twice) the size.
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
            for j in range(len(sizes)) if size % 2 == 0 else ():
                moved = [*sizes]
                moved[i], moved[j] = moved[i] // 2, 2 * moved[j]
                if i != j:
                    yield replace(c, axes=self._named([n for n in moved if n > 1]))
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
                    chunks=c.chunks if c.p > 2 else 0,
                )

    def _first_micro_batches(self, c: Plan) -> Sequence[int]:
        """
        Returns the numbers of micro-batches to try first in a pipeline with twice as
        many ranks as `c` has.
        """
        counts = self.micro_batches or (max(c.k, 4 * c.p),)
        return [c.k] if c.p > 1 else [k for k in counts if 2 <= k <= c.batch]

    def _axes_of(self, d: int, t: int) -> Axes:
        """
        Returns the axes of a mesh of `d` x `t` devices. The axes are named d and t if
        the search has the option `degrees`.
        """
        if self.degrees:
            return tuple((n, s) for n, s in (("d", d), ("t", t)) if s > 1)
        return self._named([n for n in (d, t) if n > 1])

    def _named(self, sizes: Sequence[int]) -> Axes:
        """Returns the axes of a mesh with the given sizes, and names the axes."""
        names = AXES
        if len(sizes) == 1 and self.asked_axes == frozenset(AXES[1]):
            names = AXES[1:]
        return tuple(zip(names[: len(sizes)], sizes, strict=True))


def _parts(plan: GridPlan) -> int:
    """
    Returns the number of parts into which a plan divides the parameters of experts. The
    split by ZeRO is not counted.
    """
    return plan.t * plan.p * plan.e


def _halved(batches: Sequence[int]) -> list[int]:
    """
    Returns numbers of micro-batches to try for `batches`: the powers of two, and the
    sizes of the batches divided by powers of two.
    """
    powers = [2**i for i in range(max(batches, default=1).bit_length())]
    parts = (
        batch // power for batch in batches for power in powers if batch % power == 0
    )
    return sorted({*powers, *parts})


def with_micro_batches(plan: Plan, k: int) -> Plan:
    """
    Returns `plan` with `k` micro-batches. If `k` is 1, the option `no_sync` is turned
    off, because there are no gradients to sum.
    """
    if k == 1 and isinstance(plan, GridPlan):
        plan = replace(plan, no_sync=False)
    return replace(plan, k=k)
