"""Plans: ways to distribute a program, and the grid of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields
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
"""Numbers of micro-batches that are tried if none are given (DistIR section 5)."""

Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh, outermost first, as names with sizes."""


@dataclass(frozen=True)
class Plan(ABC):
    """
    One way to distribute a program. This is the common part of `GridPlan` and `LayoutPlan`,
    which say how tensors are split over the devices of a pipeline rank. Plans are ordered
    by all their fields.

    - `batch`: the size of the batch; `checkpoint`: the policy of `activation-checkpoint`;
    - `p`, `k`: numbers of pipeline ranks and micro-batches; `schedule`: the pipeline
      schedule, empty for the default one; `stages`: may be `search`;
    - `overlap`: whether communication overlaps computation; `buckets`: whether neighbouring
      tensors travel in one message.
    """

    batch: int
    _: KW_ONLY
    p: int = same_option(PipelineOptions, "p")
    k: int = same_option(PipelineOptions, "k")
    checkpoint: str = same_option(DistributionOptions, "checkpoint")
    schedule: str = same_option(PipelineOptions, "schedule")
    stages: str = same_option(PipelineOptions, "stages", default="")
    overlap: bool = same_option(DistributionOptions, "overlap")
    buckets: bool = same_option(DistributionOptions, "buckets")

    @property
    def is_pipelined(self) -> bool:
        """
        Whether the plan has a schedule, that is, several ranks or several micro-batches.
        """
        return self.p > 1 or self.k > 1

    @property
    def pipeline(self) -> PipelineOptions:
        """
        The options of the pipeline, or of the accumulation of gradients, if there is one.
        """
        stages = (self.stages,) if self.stages else ()
        return PipelineOptions(
            p=self.p, k=self.k, schedule=self.schedule, stages=stages
        )

    @property
    @abstractmethod
    def division(self) -> tuple[object, ...]:
        """The division of the program among the devices, as a key."""

    @property
    @abstractmethod
    def _order(self) -> tuple[Any, ...]:
        """The key by which plans are ordered."""

    @property
    def shared(self) -> tuple[object, ...]:
        """The key that plans have in common whose layouts are chosen together."""
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
            self.overlap,
            self.buckets,
        )

    def _options(self) -> str:
        """The options that differ from their defaults, as text."""
        text = ""
        if self.checkpoint != "none":
            text += f" checkpoint={self.checkpoint}"
        if self.schedule:
            text += f" schedule={self.schedule}"
        if self.stages:
            text += f" stages={self.stages}"
        text += " overlap" if self.overlap else ""
        return text + ("" if self.buckets else " no-buckets")


@dataclass(frozen=True, kw_only=True)
class GridPlan(Plan):
    """
    A point of DistIR's grid: options of `distribute`. `d`, `t`, `c` and `e` are the degrees of
    data, tensor, context and expert parallelism, `zero` is the ZeRO stage, `context` says how keys
    and values come to the queries of other devices. Sequences in parts are in cyclic order.
    `r` is the number of groups of devices that hold copies of what ZeRO splits over d. With
    `no_sync`, ZeRO 3 adds up whole gradients over micro-batches. With `offload_states` the
    optimizer's states are in the host's memory.
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

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.batch_parts * self.c * self.t * self.p

    @property
    def batch_parts(self) -> int:
        """The number of parts of a batch that are on different devices."""
        return self.r * self.d * self.e

    @property
    def division(self) -> tuple[object, ...]:
        return self.d, self.t, self.p, self.zero, self.c, self.e, self.r

    @property
    def shared(self) -> tuple[object, ...]:
        # Parameters that are updated in parts stay so until the next step's forward.
        return *super().shared, self.overlap and self.zero in (1, 2), self.no_sync

    @property
    def _order(self) -> tuple[Any, ...]:
        sizes = self.d, self.t, self.p, self.zero, self.c, self.context, self.e, self.r
        return self.batch, *sizes, self.no_sync, self.offload_states, *self._rest, ()

    def options(
        self, shard: tuple[str, ...] = (), whole: tuple[str, ...] = ()
    ) -> DistributionOptions:
        """
        Returns the options of `distribute` for this plan, with the given arguments split
        (`shard`) and kept whole.
        """
        named = {own.name for own in fields(DistributionOptions)}
        own = {name: value for name, value in vars(self).items() if name in named}
        return DistributionOptions(
            **own | vars(self.pipeline),
            context_order="contiguous" if self.c == 1 else "cyclic",
            shard=shard,
            whole=whole,
        )

    def searched(self, axes: Axes) -> LayoutPlan:
        """
        Returns the same pipeline with layouts that are searched on a mesh of these axes.
        """
        common = {own.name: getattr(self, own.name) for own in fields(Plan)}
        return LayoutPlan(**common, axes=axes)

    def __str__(self) -> str:
        text = f"batch={self.batch} d={self.d} t={self.t} p={self.p} k={self.k}"
        text += f" r={self.r}" if self.r > 1 else ""
        text += f" e={self.e}" if self.e > 1 else ""
        text += f" c={self.c} context={self.context}" if self.c > 1 else ""
        text += f" zero={self.zero}" if self.zero else ""
        text += " no-sync" if self.no_sync else ""
        text += " offload-states" if self.offload_states else ""
        return text + self._options()


@dataclass(frozen=True, kw_only=True)
class LayoutPlan(Plan):
    """
    A plan whose layouts are searched (`search-sharding`) on a mesh of these `axes` for each
    pipeline rank.
    """

    axes: Axes

    @property
    def division(self) -> tuple[object, ...]:
        return self.axes, self.p

    @property
    def _order(self) -> tuple[Any, ...]:
        grid = 1, 1, self.p, 0, 1, "", 1, 1, False, False
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
    - `devices`: r x d x e x c x t x p is exactly that many, unless `degrees` lists triples (d, t, p);
    - `c`, `e`: degrees of context and of expert parallelism; `r`: numbers of groups with copies
      of what ZeRO splits, of which plans without ZeRO have the first only;
    - `micro_batches`: numbers of micro-batches k. Without them, k is 1 for p = 1, and
      one of 2, 4, ... 128 for a pipeline. With them, pipelines take each of them, and a
      training step on one pipeline rank takes 1 and each of them (it accumulates
      gradients);
    - `zero`, `checkpoint`: of training steps; a ZeRO stage is left out where d = e = 1;
    - `no_sync`: whether whole gradients add up, where ZeRO 3 meets several micro-batches;
    - `offload_states`: of training steps: whether the optimizer's states are in the host's
      memory;
    - `schedules`: of pipelines; none is the default schedule;
    - `overlap`: whether communication overlaps computation, where there are several devices;
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
        Returns the grid of a search; without options it has no ZeRO, no checkpointing and
        no overlap. `devices` is the number of devices if the options do not give one.
        Raises DistIRError.
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
        Returns all plans, those that share work next to each other, without those whose
        devices would get no sample per micro-batch. Raises DistIRError if none is left.
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
        """Returns all plans in the order of `plans`; none if the grid is empty."""
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
                            for overlap, no_sync, offload_states in product(
                                (False,) if is_alone else self.overlap,
                                self.no_sync if zero == 3 and k > 1 else (False,),
                                self.offload_states,
                            ):
                                yield GridPlan(
                                    batch, d=d, t=t, p=p, k=k, zero=zero,
                                    checkpoint=checkpoint, schedule=schedule,
                                    overlap=overlap, buckets=self.buckets,
                                    c=c, context=context, e=e, r=r, no_sync=no_sync,
                                    offload_states=offload_states,
                                )  # fmt: skip

    def _degrees(self) -> Iterator[tuple[int, int, int, int, str, int, int]]:
        """All (d, t, p, c), with the ways in which keys come to queries, e and r."""
        for c, e, r in product(self.c, self.e, self.r):
            inner = c * e * r
            rest = self.devices // inner if self.devices % inner == 0 else 0
            for degrees in self.degrees or _factorisations(rest):
                for context in CONTEXTS if c > 1 else CONTEXTS[:1]:
                    yield *degrees, c, context, e, r

    def _pipelines(self, p: int) -> Iterator[tuple[int, str]]:
        """Yields the numbers of micro-batches with schedules on p ranks."""
        if p == 1:
            yield 1, ""
            if self.trains:
                yield from ((k, "") for k in sorted(self.micro_batches) if k > 1)
            return
        for k in sorted(self.micro_batches or MICRO_BATCHES):
            for schedule in self.schedules or ("",):
                yield k, schedule


def _factorisations(devices: int) -> Iterator[tuple[int, int, int]]:
    """Yields all (d, t, p) whose product is the number of devices."""
    for d in _divisors(devices):
        for t in _divisors(devices // d):
            yield d, t, devices // (d * t)


def _divisors(number: int) -> list[int]:
    """Returns all divisors of a number in ascending order."""
    small = [i for i in range(1, isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})
