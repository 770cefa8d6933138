"""Plans, each one way to distribute a program, and the grid of plans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from itertools import product
from math import isqrt
from typing import Any

from distir.dialects.device import MOST_DEVICES
from distir.errors import DistIRError
from distir.options import same_option
from distir.pipelining import PipelineOptions
from distir.planning.distribution.distribute import CONTEXTS
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.options import SearchOptions

MICRO_BATCHES = (2, 4, 8, 16, 32, 64, 128)
"""The numbers of micro-batches that a search tries by default (DistIR section 5)."""

OVERLAPPED = ("tp", "pp")
"""
The kinds of communication that overlap computation where experts are on several
devices: all-to-alls of tokens, and sends between pipeline ranks.
"""

Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh, outermost first, as pairs of name and size."""


@dataclass(frozen=True)
class Plan(ABC):
    """
    One way to distribute a program. The subclasses `GridPlan` and `LayoutPlan` add the
    split of tensors over the devices of a pipeline rank. Plans are ordered by all their
    fields.

    - `batch`: the size of the batch; `checkpoint`: the policy of
      `activation-checkpoint`;
    - `p`, `k`: numbers of pipeline ranks and micro-batches; `schedule`: the pipeline
      schedule, empty for the default one; `stages`: the division into stages, empty for
      the default one, or `search` to search it; `chunks`: the stages per rank, 0 for the
      fewest that the schedule can have;
    - `overlap`: whether communication overlaps computation; `overlap_kinds`: the kinds of
      communication that overlap, joined by commas, empty for all kinds; `buckets`:
      whether neighbouring tensors travel in one message.
    """

    batch: int
    _: KW_ONLY
    p: int = same_option(PipelineOptions, "p")
    k: int = same_option(PipelineOptions, "k")
    checkpoint: str = same_option(DistributionOptions, "checkpoint")
    schedule: str = same_option(PipelineOptions, "schedule")
    stages: str = same_option(PipelineOptions, "stages", default="")
    chunks: int = same_option(PipelineOptions, "chunks", default=0)
    overlap: bool = same_option(DistributionOptions, "overlap")
    overlap_kinds: str = ""
    buckets: bool = same_option(DistributionOptions, "buckets")

    @property
    def is_pipelined(self) -> bool:
        """
        Whether the plan needs a schedule: it has several pipeline ranks or several
        micro-batches.
        """
        return self.p > 1 or self.k > 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """
        The kinds of communication that overlap computation; empty for all kinds, or if
        the plan has no overlap.
        """
        return tuple(filter(None, self.overlap_kinds.split(",")))

    @property
    def pipeline(self) -> PipelineOptions:
        """
        The options of the pipeline. If the plan has one pipeline rank, these options
        control the accumulation of gradients over micro-batches.
        """
        stages = (self.stages,) if self.stages else ()
        return PipelineOptions(
            p=self.p,
            k=self.k,
            schedule=self.schedule,
            stages=stages,
            chunks=self.chunks or None,
        )

    @property
    @abstractmethod
    def division(self) -> tuple[object, ...]:
        """
        A key for the division of the program among the devices. Plans with equal keys
        divide the program in the same way.
        """

    @property
    @abstractmethod
    def _order(self) -> tuple[Any, ...]:
        """The sort key of plans."""

    @property
    def shared(self) -> tuple[object, ...]:
        """A key that is equal for plans whose layouts are chosen together."""
        return (self.batch, self.division, self.checkpoint, self.is_pipelined)

    def __lt__(self, other: Plan) -> bool:
        return self._order < other._order

    @property
    def _rest(self) -> tuple[Any, ...]:
        return (
            self.checkpoint,
            self.k,
            self.schedule,
            self.stages,
            self.chunks,
            self.overlap,
            self.overlap_kinds,
            self.buckets,
        )

    def _options(self) -> str:
        """Returns the options that differ from their defaults, as text."""
        text = ""
        if self.checkpoint != "none":
            text += f" checkpoint={self.checkpoint}"
        if self.schedule:
            text += f" schedule={self.schedule}"
        if self.stages:
            text += f" stages={self.stages}"
        text += f" chunks={self.chunks}" if self.chunks else ""
        text += " overlap" if self.overlap else ""
        text += f"={self.overlap_kinds}" if self.overlap_kinds else ""
        return text + ("" if self.buckets else " no-buckets")


@dataclass(frozen=True, kw_only=True)
class GridPlan(Plan):
    """
    A plan of the grid, given as options of `distribute`.

    - `d`, `t`, `c`, `e`: the degrees of data, tensor, context and expert parallelism;
    - `zero`: the ZeRO stage;
    - `context`: the way in which keys and values reach the queries on other devices.
      Sequences that are split (c > 1) are distributed in cyclic order;
    - `r`: the number of groups of devices that each hold a full copy of the tensors
      that ZeRO splits over d;
    - `no_sync`: whether ZeRO 3 sums whole gradients over micro-batches;
    - `offload_states`: whether the optimizer's states are in the host's memory;
    - `sequence_parallel`: whether sequences are split over the t devices between the
      blocks; `keep_gathered`: whether layers keep the sequences that they gathered for
      the backward pass;
    - `expert_axes`: the axes over which experts are distributed;
    - `cache_split`: the way in which the t devices of an inference program split its
      caches.
    """

    d: int = same_option(DistributionOptions, "d")
    t: int = same_option(DistributionOptions, "t")
    zero: int = same_option(DistributionOptions, "zero")
    c: int = same_option(DistributionOptions, "c")
    context: str = same_option(DistributionOptions, "context")
    e: int = same_option(DistributionOptions, "e")
    r: int = same_option(DistributionOptions, "r")
    no_sync: bool = same_option(DistributionOptions, "no_sync")
    offload_states: bool = same_option(DistributionOptions, "offload_states")
    sequence_parallel: bool = same_option(DistributionOptions, "sequence_parallel")
    keep_gathered: bool = same_option(DistributionOptions, "keep_gathered")
    expert_axes: str = same_option(DistributionOptions, "expert_axes")
    cache_split: str = same_option(DistributionOptions, "cache_split")

    @property
    def devices(self) -> int:
        """The number of devices that the plan uses."""
        return self.batch_parts * self.c * self.t * self.p

    @property
    def batch_parts(self) -> int:
        """The number of parts into which the batch is split over devices."""
        return self.r * self.d * self.e

    @property
    def is_overlapped_at_once(self) -> bool:
        """
        Whether only all-to-alls and sends overlap computation, in a pipeline that can
        be simulated with this overlap without building its program. Nothing but experts
        and samples is split, so that activations are neither reduced nor gathered.
        """
        is_plain = self.t * self.c * self.r == 1 and self.zero <= 1
        return self.overlap and is_plain and self.p > 1 and self.kinds == OVERLAPPED

    @property
    def division(self) -> tuple[object, ...]:
        sizes = self.d, self.t, self.p, self.zero, self.c, self.e, self.r
        return *sizes, self.expert_axes, self.cache_split

    @property
    def shared(self) -> tuple[object, ...]:
        # With overlap, ZeRO 1 and 2 store parameters split until the next step's
        # forward.
        early = self.overlap and (not self.overlap_kinds or "params" in self.kinds)
        stored = early and self.zero in (1, 2)
        between = self.sequence_parallel, self.keep_gathered
        return *super().shared, stored, self.no_sync, *between

    @property
    def _order(self) -> tuple[Any, ...]:
        sizes = self.d, self.t, self.p, self.zero, self.c, self.context, self.e, self.r
        switches = self.no_sync, self.offload_states, self.sequence_parallel
        switches += self.keep_gathered, self.expert_axes, self.cache_split
        return self.batch, *sizes, *switches, *self._rest, ()

    def folded(self, expert_axes: str) -> GridPlan | None:
        """
        Returns the plan with experts distributed over `expert_axes`, or None if an axis
        has size 1 or the plan's split of sequences does not allow it. If the axes
        include "t", sequences are split over "t" between the blocks, so that each
        device has its own tokens.
        """
        sizes = {"c": self.c, "t": self.t}
        over = "".join(a for a in sizes if sizes[a] > 1 and a in expert_axes)
        # Sequences in cyclic order over c cannot be divided further for the exchange.
        if f"e{over}" != expert_axes or (self.c > 1 and "t" in over):
            return None
        parts = "t" in over or (self.sequence_parallel and "t" not in self.expert_axes)
        return replace(self, expert_axes=expert_axes, sequence_parallel=parts)

    def options(
        self, shard: tuple[str, ...] = (), whole: tuple[str, ...] = ()
    ) -> DistributionOptions:
        """
        Returns the options of `distribute` for this plan. `shard` and `whole` are
        requests of the user: splits that arguments must have, and names of arguments to
        keep whole.
        """
        named = {own.name for own in fields(DistributionOptions)}
        own = {name: value for name, value in vars(self).items() if name in named}
        own["overlapped"] = self.kinds
        return DistributionOptions(
            **own | vars(self.pipeline),
            context_order="contiguous" if self.c == 1 else "cyclic",
            shard=shard,
            whole=whole,
        )

    def searched(self, axes: Axes) -> LayoutPlan:
        """
        Returns a plan with the pipeline of this plan, in which the layouts are searched
        on a mesh with the axes `axes`.
        """
        common = {own.name: getattr(self, own.name) for own in fields(Plan)}
        return LayoutPlan(**common, axes=axes)

    def __str__(self) -> str:
        text = f"batch={self.batch} d={self.d} t={self.t} p={self.p} k={self.k}"
        text += f" r={self.r}" if self.r > 1 else ""
        text += f" e={self.e}" if self.e > 1 else ""
        if self.expert_axes != "e":
            text += f" expert-axes={self.expert_axes}"
        if self.cache_split != "heads":
            text += f" cache-split={self.cache_split}"
        text += f" c={self.c} context={self.context}" if self.c > 1 else ""
        text += f" zero={self.zero}" if self.zero else ""
        text += " no-sync" if self.no_sync else ""
        text += " offload-states" if self.offload_states else ""
        text += " sequence-parallel" if self.sequence_parallel else ""
        text += " keep-gathered" if self.keep_gathered else ""
        return text + self._options()


@dataclass(frozen=True, kw_only=True)
class LayoutPlan(Plan):
    """
    A plan with searched layouts, from the search of the pass `search-sharding`. Each
    pipeline rank has a mesh with the axes `axes`.
    """

    axes: Axes

    @property
    def division(self) -> tuple[object, ...]:
        return self.axes, self.p

    @property
    def _order(self) -> tuple[Any, ...]:
        grid = 1, 1, self.p, 0, 1, "", 1, 1, False, False, False, "", ""
        return self.batch, *grid, *self._rest, self.axes

    def __str__(self) -> str:
        axes = ",".join(f"{name}={size}" for name, size in self.axes)
        text = f"batch={self.batch} layouts searched over {axes}"
        if self.is_pipelined:
            text += f" p={self.p} k={self.k}"
        return text + self._options()


@dataclass(frozen=True)
class Space:
    """
    The grid of plans (DistIR section 5).

    - `batches`: sizes of the batch; `trains`: whether the program is a training step;
    - `devices`: the number of devices, always equal to r x d x e x c x t x p, unless
      `degrees` lists triples (d, t, p);
    - `c`, `e`: degrees of context and of expert parallelism; `expert_axes`: the axes
      over which experts are distributed, if these have a size above 1; `r`: numbers of
      groups that each hold a full copy of the tensors that ZeRO splits; plans without
      ZeRO use the first of these numbers;
    - `micro_batches`: numbers of micro-batches k. If empty, k is 1 for p = 1, and one
      of 2, 4, ... 128 for a pipeline. If given, pipelines try each of these numbers. A
      training step on one pipeline rank then tries 1 and each of these numbers, and
      accumulates gradients;
    - `zero`, `checkpoint`: ZeRO stages and checkpoint policies of training steps; ZeRO
      is left out if d = e = 1;
    - `no_sync`: whether whole gradients are summed, for ZeRO 3 with several
      micro-batches;
    - `offload_states`: whether a training step keeps the optimizer's states in the
      host's memory;
    - `cache_split`: the ways in which tensor-parallel devices split caches;
    - `schedules`: schedules of pipelines; if empty, the default schedule is used;
    - `overlap`: whether communication overlaps computation, for plans with several
      devices;
    - `buckets`: whether neighbouring tensors travel in one message, in all plans.
    """

    batches: Sequence[int]
    trains: bool
    devices: int = 1
    degrees: Sequence[tuple[int, int, int]] = ()
    micro_batches: Sequence[int] = ()
    zero: Sequence[int] = (0,)
    checkpoint: Sequence[str] = ("none",)
    schedules: Sequence[str] = ()
    c: Sequence[int] = (1,)
    e: Sequence[int] = (1,)
    expert_axes: Sequence[str] = ("e",)
    cache_split: Sequence[str] = ("heads",)
    r: Sequence[int] = (1,)
    no_sync: Sequence[bool] = (False,)
    offload_states: Sequence[bool] = (False,)
    overlap: Sequence[bool] = (False,)
    buckets: bool = True

    @staticmethod
    def of(
        options: SearchOptions,
        batches: Sequence[int],
        trains: bool,
        devices: int,
        degrees: Sequence[tuple[int, int, int]] = (),
    ) -> Space:
        """
        Returns the grid of a search. By default it has no ZeRO, no checkpointing and no
        overlap. `devices` is the number of devices, unless the options have a
        `world_size`. Raises DistIRError for option values that do not exist.
        """
        return Space(
            batches,
            trains,
            options.world_size or devices,
            degrees,
            **options.choices(),
        )

    def plans(self) -> list[GridPlan]:
        """
        Returns all plans that give each device at least one sample per micro-batch.
        Plans that share work are next to each other. Raises DistIRError if no plan is
        left, if there are too many devices, or if an option needs a training step and
        the program is not a training step.
        """
        for_training = any(self.zero) or any(self.offload_states)
        if not self.trains and (for_training or set(self.checkpoint) != {"none"}):
            raise DistIRError(
                "search: ZeRO, activation checkpointing and offloading are for training steps, but the "
                "program updates no argument (dist.updates); build or import it with "
                "--training, or leave them out"
            )
        if self.devices > MOST_DEVICES:
            raise DistIRError(
                f"search: {self.devices} devices are more than a cluster may have; ask for "
                f"at most {MOST_DEVICES}"
            )
        found = self.known()
        if not found:
            raise DistIRError(
                f"search: the grid is empty: none of its configurations gives each device "
                f"a sample of a batch of {max(self.batches)} or less; choose larger batches, "
                f"fewer devices or fewer micro-batches"
            )
        return found

    def known(self) -> list[GridPlan]:
        """
        Returns all plans of the grid, with plans that share work next to each other.
        Unlike `plans`, checks nothing; the list may be empty.
        """
        return list(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[GridPlan]:
        for batch in self.batches:
            for d, t, p, c, context, e, r in self._degrees():
                for zero in (
                    self.zero if d * e > 1 else sorted({0} & set(self.zero)) or [0]
                ):
                    if not zero and r != self.r[0]:
                        continue
                    for checkpoint in self.checkpoint:
                        for k, schedule in self._pipelines(p):
                            if batch // (r * d * e) // k == 0:
                                continue
                            is_alone = d * t * p * c * e * r == 1
                            for (
                                overlap,
                                no_sync,
                                offload_states,
                                cache_split,
                            ) in product(
                                (False,) if is_alone else self.overlap,
                                self.no_sync if zero == 3 and k > 1 else (False,),
                                self.offload_states,
                                self.cache_split if t > 1 else ("heads",),
                            ):
                                plan = GridPlan(
                                    batch, d=d, t=t, p=p, k=k, zero=zero,
                                    checkpoint=checkpoint, schedule=schedule,
                                    overlap=overlap, buckets=self.buckets,
                                    c=c, context=context, e=e, r=r, no_sync=no_sync,
                                    offload_states=offload_states,
                                    cache_split=cache_split,
                                )  # fmt: skip
                                folded = map(plan.folded, self.expert_axes)
                                yield from (each for each in folded if each)

    def _degrees(self) -> Iterator[tuple[int, int, int, int, str, int, int]]:
        """
        Yields all combinations (d, t, p, c, context, e, r) of degrees. `context` is the
        way in which keys reach the queries on other devices.
        """
        for c, e, r in product(self.c, self.e, self.r):
            inner = c * e * r
            rest = self.devices // inner if self.devices % inner == 0 else 0
            for degrees in self.degrees or _factorisations(rest):
                for context in CONTEXTS if c > 1 else CONTEXTS[:1]:
                    yield *degrees, c, context, e, r

    def _pipelines(self, p: int) -> Iterator[tuple[int, str]]:
        """
        Yields the numbers of micro-batches to try on `p` pipeline ranks, each with a
        schedule.
        """
        if p == 1:
            yield 1, ""
            if self.trains:
                yield from ((k, "") for k in sorted(self.micro_batches) if k > 1)
            return
        for k in sorted(self.micro_batches or MICRO_BATCHES):
            for schedule in self.schedules or ("",):
                yield k, schedule


def _factorisations(devices: int) -> Iterator[tuple[int, int, int]]:
    """Yields all (d, t, p) whose product is `devices`."""
    for d in _divisors(devices):
        for t in _divisors(devices // d):
            yield d, t, devices // (d * t)


def _divisors(number: int) -> list[int]:
    """Returns all divisors of `number` in ascending order."""
    small = [i for i in range(1, isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})
