"""The results of plans, as simulated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan


@dataclass(frozen=True)
class Result(ABC):
    """A plan and its outcome: `Simulated` or `Impossible`."""

    plan: Plan

    @property
    @abstractmethod
    def fits(self) -> bool:
        """
        Whether the program can be distributed by this plan within the memory of all
        devices.
        """

    def to_json(self) -> dict[str, Any]:
        """
        Returns the result as one flat JSON object, with the same keys for all results.
        """
        known = {**vars(self.plan), **vars(self)}
        if isinstance(self.plan, LayoutPlan):
            known["axes"] = ",".join(f"{n}={size}" for n, size in self.plan.axes)
        data = {name: known.get(name, default) for name, default in _JSON.items()}
        return {**data, "fits": self.fits}


@dataclass(frozen=True)
class Impossible(Result):
    """
    A plan by which the program cannot be distributed, and why. `is_undivided`: no plan with
    several micro-batches is possible, for this reason; JSON does not have it, and results that
    differ in it are equal.
    """

    error: str
    is_undivided: bool = field(default=False, compare=False, repr=False)

    @property
    def fits(self) -> bool:
        return False


@dataclass(frozen=True)
class Simulated(Result):
    """
    A plan and its simulation. `peak_memory_bytes`, `memory_bytes` and
    `reserved_memory_bytes` are of the device that has the least left; `spare_bytes` is what
    is left on each device, or on one of each pipeline rank, in order. `bound_s`: if the layouts were searched, no others on that mesh take
    fewer seconds (0: unknown; overlap and buckets may go below it). `layouts`: the searched
    layouts, so that they need not be searched again. `layer_ranks`: of a training step, the
    pipeline rank that each layer is on, if known. JSON has none of the spare bytes, the
    layouts and the layers' ranks, and results that differ in the first and last are equal.
    """

    step_time_s: float
    throughput_samples_per_s: float
    peak_memory_bytes: int
    memory_bytes: int
    reserved_memory_bytes: int = 0
    spare_bytes: tuple[int, ...] = field(default=(), compare=False, repr=False)
    bound_s: float = 0.0
    layouts: ChosenLayouts | None = None
    layer_ranks: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def needed_bytes(self) -> int:
        """The bytes that the software takes from the device."""
        return max(self.peak_memory_bytes, self.reserved_memory_bytes)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes

    def has_layouts_of(self, plan: Plan) -> bool:
        """
        Whether the searched layouts are those of another plan too: if the plans differ in
        nothing but overlap, or, provided that memory did not decide, in what does not
        change the problem: pipeline ranks, schedule and stages.
        """
        if self.layouts is None:
            return False
        if replace(self.plan, overlap=plan.overlap) == plan:
            return True
        return (
            self.plan.is_pipelined
            and plan.is_pipelined
            and not self.layouts.for_any_pipeline.limited
            and _without_pipeline(self.plan) == _without_pipeline(plan)
        )

    def layouts_for(self, plan: Plan) -> ChosenLayouts | None:
        """
        Returns the layouts for a plan whose layouts these are too: without what sends
        changed if it is another pipeline.
        """
        if self.layouts is None or replace(self.plan, overlap=plan.overlap) == plan:
            return self.layouts
        return self.layouts.for_any_pipeline


_JSON: Mapping[str, str | int | float] = {
    **vars(GridPlan(0)),
    "axes": "",
    "step_time_s": 0.0,
    "throughput_samples_per_s": 0.0,
    "peak_memory_bytes": 0,
    "memory_bytes": 0,
    "reserved_memory_bytes": 0,
    "error": "",
    "bound_s": 0.0,
}
"""The keys of a result as JSON data, with the values that stand for missing ones."""


_ADDED = (
    *("c", "context", "e", "r", "no_sync", "offload_states"),
    "reserved_memory_bytes",
)
"""Keys that results of earlier versions lack."""


def from_json(data: Mapping[str, Any]) -> Result:
    """
    Restores the result from what `to_json` gave. Raises KeyError, ValueError or TypeError
    for other data.
    """
    found: dict[str, Any] = {}
    for name, default in _JSON.items():
        value = data.get(name, default) if name in _ADDED else data[name]
        kind = type(default)
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise TypeError(f"{name} is {value!r}")
        found[name] = kind(value)
    axes = [axis.split("=") for axis in found.pop("axes").split(",") if axis]
    plan = GridPlan(**{name: found.pop(name) for name in vars(GridPlan(0))})
    if axes:
        plan = plan.searched(tuple((name, int(size)) for name, size in axes))
    error = found.pop("error")
    return Impossible(plan, error) if error else Simulated(plan, **found)


def simulated(results: Iterable[Result]) -> list[Simulated]:
    """Returns the results of the plans that are possible."""
    return [result for result in results if isinstance(result, Simulated)]


def _without_pipeline(plan: Plan) -> Plan:
    return replace(plan, p=1, schedule="", stages="", overlap=False)
