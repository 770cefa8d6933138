"""The best plan that an expert may write: Megatron's degrees, ZeRO, pipelines, experts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.interpreters.cost import simulate
from distir.passes.distribute import DistributePass
from distir.passes.search.bounds import Bounds
from distir.passes.search.grid import Configuration

EXPERTS = "transformer.h.*.moe.experts.*.weight"
POLICIES = ("none", "selective", "full")
SCHEDULES = ("", "interleaved-1f1b", "zb-h1", "interleaved-zero-bubble", "zbv")
_CLIMBED = 6
"""Plans whose neighbours are tried at a time."""


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
    """A plan, its simulated step, and whether it fits; 0 s if it is not possible."""

    plan: HandPlan
    seconds: float = 0.0
    peak_gb: float = 0.0
    fits: bool = False


class HandPlans:
    """
    Finds the fastest plan for a training step on all devices of its cluster; `journal` keeps what was
    judged, a JSON line each.

    First, for all d x t x p and a quarter of the numbers of micro-batches, with sequence
    parallelism, the fastest policy that fits: with checkpointing as little as will do, with
    the lowest ZeRO stage that fits (stage 1 takes no longer than none). Then from the
    fastest ones on whatever differs in one option, until nothing is faster.
    """

    def __init__(self, module: ModuleOp, batch: int, experts: int, journal: Path):
        self.module = module
        self.batch = batch
        self.experts = experts
        self.journal = journal
        (cluster,) = (o for o in module.body.block.ops if isinstance(o, ClusterOp))
        self.devices = cluster.size
        self.bounds = Bounds.of(module, cluster, self.devices)
        self.judged: dict[HandPlan, Judged] = {}
        if journal.exists():
            for line in journal.read_text("utf-8").splitlines():
                data: dict[str, Any] = json.loads(line)
                plan = HandPlan(**data.pop("plan"))
                self.judged[plan] = Judged(plan, **data)

    def best(self) -> Judged:
        """The fastest plan that fits. Raises DistIRError if none does."""
        for first in self._first():
            for policy in POLICIES:
                zeros = (1, 2, 3) if first.d > 1 else (0,)
                plans = [replace(first, checkpoint=policy, zero=z) for z in zeros]
                if any(self._judge(plan).fits for plan in plans[:1]) or any(
                    self._judge(plan).fits for plan in plans[1:]
                ):
                    break
        climbed: set[HandPlan] = set()
        while True:
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

    def _fitting(self) -> list[Judged]:
        return sorted(
            (j for j in self.judged.values() if j.fits), key=lambda j: j.seconds
        )

    def _first(self) -> Iterator[HandPlan]:
        for d, t, p in _degrees(self.devices):
            for experts in self._expert_axes(d, t):
                for k in (1, 4, 16, 64):
                    if self._has_samples(d, p, k):
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
        for policy in POLICIES:
            yield replace(plan, checkpoint=policy)
        for zero in range(4) if plan.d > 1 else ():
            yield replace(plan, zero=zero)
        for schedule in SCHEDULES if plan.p > 1 else ():
            yield replace(plan, schedule=schedule)
        if plan.t > 1:
            yield replace(plan, sequence_parallel=not plan.sequence_parallel)
        for experts in self._expert_axes(plan.d, plan.t):
            yield replace(plan, experts=experts)
        yield replace(plan, overlap=not plan.overlap)

    def _judge(self, plan: HandPlan) -> Judged:
        if plan in self.judged:
            return self.judged[plan]
        judged = self._simulated(plan)
        self.judged[plan] = judged
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(judged)) + "\n")
        return judged

    def _simulated(self, plan: HandPlan) -> Judged:
        p = plan
        kept = Configuration(self.batch, p.d, p.t, p.p, p.zero)
        if not self.experts and not self.bounds.may_fit(kept):
            return Judged(plan)
        module = self.module.clone()
        options = asdict(plan)
        axis = options.pop("experts")
        if axis:
            options["shard"] = (f"{EXPERTS}:0={axis}",)
        try:
            DistributePass(**options).apply(Context(), module)
            found = simulate(module)
        except (DistIRError, VerifyException):
            return Judged(plan)
        peak = max(found.peak_memory_bytes) / 1e9
        return Judged(plan, found.step_time_s, peak, found.fits)


def _degrees(devices: int) -> Iterator[tuple[int, int, int]]:
    for d in range(1, devices + 1):
        for t in range(1, devices // d + 1):
            if devices % (d * t) == 0:
                yield d, t, devices // (d * t)
