"""The simulated results of plans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan


@dataclass(frozen=True)
class Result(ABC):
    """The outcome of a plan: either `Simulated` or `Impossible`."""

    plan: Plan

    @property
    @abstractmethod
    def fits(self) -> bool:
        """
        Whether the program can be distributed by this plan and fits into the memory of
        all devices.
        """

    def to_json(self) -> dict[str, Any]:
        """
        Returns the result as one flat JSON object. All results have the same keys,
        except that `chunks`, `sequence_parallel`, `keep_gathered`, `expert_axes` and
        `cache_split` are present only for plans that have these options.
        """
        known = {**vars(self.plan), **vars(self)}
        if isinstance(self.plan, LayoutPlan):
            known["axes"] = ",".join(f"{n}={size}" for n, size in self.plan.axes)
        data = {name: known.get(name, default) for name, default in _JSON.items()}
        for name in _IF_SET:
            if data[name] == _JSON[name]:
                del data[name]
        return {**data, "fits": self.fits}


@dataclass(frozen=True)
class Impossible(Result):
    """
    A plan by which the program cannot be distributed. `error` is the reason.
    `is_undivided` says whether this reason rules out every plan with several
    micro-batches. JSON leaves `is_undivided` out, and comparisons of results ignore it.
    """

    error: str
    is_undivided: bool = field(default=False, compare=False, repr=False)

    @property
    def fits(self) -> bool:
        return False


@dataclass(frozen=True)
class Simulated(Result):
    """
    A plan and the results of its simulation.

    - `peak_memory_bytes`, `memory_bytes`, `reserved_memory_bytes`: the peak of the
      program's values, the memory of the device, and the peak that the allocator
      reserves, in bytes, on the device with the least memory to spare;
    - `spare_bytes`: the free memory of each device, or of one device per pipeline rank,
      in order;
    - `layouts`: the layouts if they were searched, so that no second search is needed;
    - `bound_s`: if layouts were searched, a lower bound of the seconds of a step with
      any layouts on the same mesh; 0 if no bound is known. Overlap and buckets can make
      a step shorter than the bound;
    - `layer_ranks`: the pipeline rank of each layer of a training step, if known.

    JSON leaves out `spare_bytes`, `layouts` and `layer_ranks`. Comparisons ignore
    `spare_bytes` and `layer_ranks`.
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
        """
        The bytes that the program needs on the device with the least memory to spare:
        the peak of its values or, if larger, the peak that the allocator reserves.
        """
        return max(self.peak_memory_bytes, self.reserved_memory_bytes)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes

    def has_layouts_of(self, plan: Plan) -> bool:
        """
        Whether `plan` has the same layout search as this plan. This is so if the two
        plans differ in overlap alone. It is also so if three conditions hold: both
        plans are pipelined, memory did not limit the choice of layouts, and the plans
        differ only in pipeline ranks, schedule, stages and overlap, which do not change
        the search.
        """
        if self.layouts is None:
            return False
        if _with_overlap_of(self.plan, plan) == plan:
            return True
        return (
            self.plan.is_pipelined
            and plan.is_pipelined
            and not self.layouts.for_any_pipeline.limited
            and _without_pipeline(self.plan) == _without_pipeline(plan)
        )

    def layouts_for(self, plan: Plan) -> ChosenLayouts | None:
        """
        Returns the searched layouts for `plan`, for which `has_layouts_of` must be
        true. If the pipeline of `plan` differs from this plan's, the layouts are those
        that were chosen without the costs of sends between stages.
        """
        if self.layouts is None or _with_overlap_of(self.plan, plan) == plan:
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
"""
The keys of a result as JSON data, each with the value that is written if the result
lacks it.
"""


_IF_SET = (
    "chunks",
    "overlap_kinds",
    "sequence_parallel",
    "keep_gathered",
    "expert_axes",
    "cache_split",
)
"""The keys that are left out of a result whose plan does not have them."""

_ADDED = (
    *_IF_SET,
    *("c", "context", "e", "r", "no_sync", "offload_states"),
    "reserved_memory_bytes",
)
"""The keys that may be missing in results of earlier versions."""


def from_json(data: Mapping[str, Any]) -> Result:
    """
    Restores a result from the data that `to_json` returned. Raises KeyError, ValueError
    or TypeError if `data` is not such data.
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
    return replace(plan, p=1, schedule="", stages="", overlap=False, overlap_kinds="")


def _with_overlap_of(plan: Plan, other: Plan) -> Plan:
    """Returns `plan` with the overlap of the plan `other`."""
    return replace(plan, overlap=other.overlap, overlap_kinds=other.overlap_kinds)
