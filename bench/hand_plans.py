"""The best plan that an expert may write: Megatron's degrees, ZeRO, pipelines, experts."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from distir.dialects.device import AxesAttr, ClusterOp, MeshOp
from distir.errors import DistIRError
from distir.interpreters.simulator import simulate
from distir.planning.distribution.distribute import choose_layouts
from distir.planning.distribution.options import DistributionOptions
from distir.planning.distribution.overlap import overlap_communication
from distir.planning.grid.bounds import Bounds
from distir.planning.plans.plan import GridPlan
from distir.sharding.mesh import TIME_AXIS
from distir.transforms.partitioning import partition
from distir.transforms.pipelines.pipeline import make_pipeline
from distir.transforms.resharding import lower_reshards

EXPERTS = "transformer.h.*.moe.experts.*.weight"
POLICIES = ("none", "selective", "full")
SCHEDULES = ("", "interleaved-1f1b", "zb-h1", "interleaved-zero-bubble", "zbv")
NODE = 8
"""Devices per node: tensor parallelism does not go beyond a node."""

_CLIMBED = 3
"""The number of plans whose neighbours are tried at a time."""


@dataclass(frozen=True)
class HandPlan:
    """Options of `distribute`; `experts` is the axis that experts are split over."""

    d: int
    t: int
    p: int
    k: int = 1
    zero: int = 0
    checkpoint: str = "none"
    schedule: str = ""
    sequence_parallel: bool = False
    experts: str = ""
    overlap: bool = False

    def __str__(self) -> str:
        text = f"d={self.d} t={self.t} p={self.p} k={self.k}"
        for name, value in (
            ("zero", self.zero or ""),
            ("checkpoint", "" if self.checkpoint == "none" else self.checkpoint),
            ("schedule", self.schedule),
            ("experts over", self.experts),
        ):
            text += f" {name}={value}" if value else ""
        text += " sequence-parallel" if self.sequence_parallel else ""
        return text + (" overlap" if self.overlap else "")


@dataclass(frozen=True)
class Judged:
    """
    A plan, its simulated step in seconds, and whether it fits; 0 s if it is not possible.
    """

    plan: HandPlan
    seconds: float = 0.0
    peak_gb: float = 0.0
    fits: bool = False


class HandPlans:
    """
    Finds the fastest plan for a training step on `devices` of its cluster, by default all of
    them; `journal` keeps what was judged, one JSON line each. `profiles` are those of
    `simulate`; a search that does not climb tries the first plans only.

    First, for all d x t x p and a quarter of the numbers of micro-batches, it finds the
    fastest policy that fits, with sequence parallelism, which takes less time and memory:
    with as little checkpointing as suffices, and the lowest ZeRO stage from 1 on. Then it
    goes from the fastest ones to plans that may be faster and differ in one option, until
    nothing is. Plans that cannot be faster than one that fits are not simulated.
    """

    def __init__(
        self,
        module: ModuleOp,
        batch: int,
        experts: int,
        journal: Path,
        profiles: tuple[str, ...] = (),
        climbs: bool = True,
        devices: int | None = None,
    ):
        self.module = module
        self.profiles = profiles
        self.climbs = climbs
        self.batch = batch
        self.experts = experts
        self.journal = journal
        (cluster,) = (o for o in module.body.block.ops if isinstance(o, ClusterOp))
        self.devices = devices or cluster.size
        self.bounds = Bounds.of(module, cluster, self.devices)
        self.judged: dict[HandPlan, Judged] = {}
        self._annotated: tuple[HandPlan, ModuleOp] | None = None
        if journal.exists():
            for line in journal.read_text("utf-8").splitlines():
                data: dict[str, Any] = json.loads(line)
                plan = HandPlan(**data.pop("plan"))
                self.judged[plan] = Judged(plan, **data)

    def best(self) -> Judged:
        """Returns the fastest plan that fits. Raises DistIRError if none does."""
        # As in `distir.planning.grid.runner`: a program is dead when it has been simulated.
        gc.collect()
        gc.freeze()
        gc.disable()
        for first in sorted(self._first(), key=self._least_seconds):
            any(self._fits_with(first, policy) for policy in POLICIES)
        climbed: set[HandPlan] = set()
        while self.climbs:
            top = [j.plan for j in self._fitting()[:_CLIMBED]]
            new = [plan for plan in top if plan not in climbed]
            if not new:
                break
            climbed.update(new)
            for plan in new:
                for neighbour in self._neighbours(plan):
                    self._judge(neighbour)
        if not self._fitting():
            raise DistIRError("no plan of the hand-written ones fits")
        return self._fitting()[0]

    def _fits_with(self, first: HandPlan, policy: str) -> bool:
        """Judges a plan with the lowest ZeRO stage with which it fits, if any."""
        plan = replace(first, checkpoint=policy, zero=int(first.d > 1))
        lowest = self._judge(plan)
        if lowest.fits or plan.d == 1 or not lowest.seconds:
            return lowest.fits
        # Stages 2 and 3 save gradients and parameters.
        saved = self.bounds.parameters / (plan.t * plan.p) * (1 - 1 / plan.d)
        for stage in (2, 3):
            least = lowest.peak_gb * 1e9 - (stage - 1) * saved
            if (
                least <= self.bounds.memory
                and self._judge(replace(plan, zero=stage)).fits
            ):
                return True
        return False

    def _fitting(self) -> list[Judged]:
        return sorted(
            (j for j in self.judged.values() if j.fits), key=lambda j: j.seconds
        )

    def _first(self) -> Iterator[HandPlan]:
        for d, t, p in _degrees(self.devices):
            for experts in self._expert_axes(d, t):
                for k in (1, 4, 16, 64):
                    if t <= NODE and self._has_samples(d, p, k):
                        yield HandPlan(
                            d, t, p, k, sequence_parallel=t > 1, experts=experts
                        )

    def _expert_axes(self, d: int, t: int) -> Sequence[str]:
        if not self.experts:
            return ("",)
        axes = [a for a, n in (("d", d), ("t", t)) if n > 1 and self.experts % n == 0]
        return ("", *axes)

    def _has_samples(self, d: int, p: int, k: int) -> bool:
        return self.batch % (d * k) == 0 and k >= min(p, 2)

    def _neighbours(self, plan: HandPlan) -> Iterator[HandPlan]:
        for k in (plan.k // 2, plan.k * 2):
            if k and self._has_samples(plan.d, plan.p, k):
                yield replace(plan, k=k, schedule=plan.schedule if k > 1 else "")
        for policy in POLICIES[: POLICIES.index(plan.checkpoint)]:
            yield replace(plan, checkpoint=policy)
        for zero in range(plan.zero):
            yield replace(plan, zero=zero)
        for schedule in SCHEDULES if plan.p > 1 else ():
            yield replace(plan, schedule=schedule)
        yield replace(plan, overlap=True)

    def _least_seconds(self, plan: HandPlan) -> float:
        """
        Returns a lower bound of a plan's seconds: its operations at the peak, and the
        bubble of 1F1B.
        """
        bubble = (plan.p - 1) / plan.k if not plan.schedule else 0.0
        again = 0.25 if plan.checkpoint == "full" else 0.0
        return self.bounds.seconds * (1 + bubble) * (1 + again)

    def _judge(self, plan: HandPlan) -> Judged:
        if plan in self.judged:
            return self.judged[plan]
        fitting = self._fitting()
        if fitting and self._least_seconds(plan) > fitting[0].seconds:
            return Judged(plan)
        judged = self._simulated(plan)
        self.judged[plan] = judged
        gc.collect()
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(judged)) + "\n")
        return judged

    def _simulated(self, plan: HandPlan) -> Judged:
        p = plan
        kept = GridPlan(self.batch, d=p.d, t=p.t, p=p.p, zero=p.zero)
        if not self.experts and not self.bounds.may_fit(kept):
            return Judged(plan)
        try:
            found = simulate(self._distributed(plan), profiles=self.profiles)
        except (DistIRError, VerifyException):
            return Judged(plan)
        peak = max(found.peak_memory_bytes) / 1e9
        return Judged(plan, found.step_time_s, peak, found.fits)

    def _distributed(self, plan: HandPlan) -> ModuleOp:
        options: dict[str, Any] = {**asdict(plan), "buckets": False}
        axis = options.pop("experts")
        if axis:
            options["shard"] = (f"{EXPERTS}:0={axis}",)
        distribute = DistributionOptions(**options)
        # Chosen for two micro-batches: for more, what each of them gathers is dearer.
        k = min(plan.k, 2)
        shared = replace(plan, k=k, schedule="", overlap=False)
        if self._annotated is None or self._annotated[0] != shared:
            module = self.module.clone()
            first = replace(distribute, k=k, schedule="", overlap=False)
            choose_layouts(module, first)
            self._annotated = shared, module
        module = self._annotated[1].clone()
        _set_micro_batches(module, plan.k)
        partition(module)
        if distribute.is_pipelined:
            make_pipeline(module, distribute, distribute.stages)
        lower_reshards(module)
        if plan.overlap:
            overlap_communication(module)
        return module


def _degrees(devices: int) -> Iterator[tuple[int, int, int]]:
    for d in range(1, devices + 1):
        for t in range(1, devices // d + 1):
            if devices % (d * t) == 0:
                yield d, t, devices // (d * t)


def _set_micro_batches(module: ModuleOp, count: int) -> None:
    for op in module.body.block.ops:
        if isinstance(op, MeshOp):
            axes = [(a, count if a == TIME_AXIS else n) for a, n in op.axes.data]
            op.properties["axes"] = AxesAttr(tuple(axes))
