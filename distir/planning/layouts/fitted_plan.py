"""Distributed programs with searched layouts, and what their simulation found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.simulator import Simulation
from distir.pipelining import PipelineOptions
from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.layouts.search import LayoutResult


class Step(NamedTuple):
    """
    A simulated step of a program: its seconds, the samples of the batch per second, and the
    peak bytes, and those that the software takes for them, of the device that has the least
    left of its `memory_bytes`; and the bytes left on each device, or on one of each pipeline
    rank, in order.
    """

    seconds: float
    samples_per_s: float
    peak_bytes: int
    memory_bytes: int
    reserved_bytes: int
    spare_bytes: tuple[int, ...] = ()

    @staticmethod
    def of(simulated: Simulation | Step) -> Step:
        """Returns the step of a simulation; a step is its own."""
        if isinstance(simulated, Step):
            return simulated
        devices = zip(
            simulated.peak_memory_bytes,
            simulated.memory_bytes,
            simulated.reserved_memory_bytes,
            strict=True,
        )
        seconds, samples = simulated.step_time_s, simulated.throughput_samples_per_s
        return Step.on(seconds, samples, list(devices))

    @staticmethod
    def on(
        seconds: float, samples_per_s: float, devices: Sequence[tuple[int, int, int]]
    ) -> Step:
        """
        Returns a step on devices with these bytes: the peak of a program's values, the
        memory, and the part of it that the software takes for them.
        """
        peak, memory, reserved = min(devices, key=lambda d: d[1] - d[2])
        spare = tuple(memory - reserved for _, memory, reserved in devices)
        return Step(seconds, samples_per_s, peak, memory, reserved, spare)


PipelineStep = Callable[[ModuleOp, PipelineOptions, bool], Step | None]
"""
Returns the simulated step of the pipeline that would be made of a partitioned program, with
buckets of collectives (True) or without; None if that pipeline has to be made to find out.
It may take the program apart.
"""


@dataclass(frozen=True)
class FittedPlan:
    """
    A distributed program with its simulation.

    - `annotated`: the program with the layouts as annotations, before `partition`;
    - `module`: the distributed program; of a pipeline that was simulated without being made,
      the program of one micro-batch;
    - `simulated`: the program's simulation, or the step of such a pipeline;
    - `occupied`: the largest fraction of any device's memory that is used; `needed`: the
      bytes used there;
    - `layouts`: the layouts chosen; `found`: the result of the search, if it was made for
      this plan;
    - `divided`: of a pipeline, the program of one micro-batch before it became the pipeline,
      its ops marked with stages if these were searched;
    - `limit`: the bytes per device within which its layouts were searched, if they were
      searched for this plan;
    - `base`: where sends between stages counted, the plan that was found before.
    """

    annotated: ModuleOp
    module: ModuleOp
    simulated: Simulation | Step
    occupied: float
    needed: int
    layouts: ChosenLayouts
    found: LayoutResult | None = None
    divided: ModuleOp | None = None
    limit: float | None = None
    base: FittedPlan | None = None

    @property
    def step(self) -> Step:
        """The time and memory of a step."""
        return Step.of(self.simulated)

    @property
    def fits(self) -> bool:
        """Whether no device needs more memory than it has."""
        return self.occupied <= 1

    @property
    def rank(self) -> tuple[int, float]:
        """
        Sort key by which the faster of plans that fit comes first, and then, of those that
        do not, the one that lacks the least memory.
        """
        return (0, self.step.seconds) if self.fits else (1, self.occupied)
