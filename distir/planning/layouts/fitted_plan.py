"""Distributed programs with searched layouts, and the results of their simulation."""

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
    The simulated time and memory of one step.

    - `seconds`: the time of the step;
    - `samples_per_s`: the samples of the batch per second;
    - `peak_bytes`, `memory_bytes`, `reserved_bytes`: three numbers of bytes of the
      device with the least memory left: the peak of the program's values, the memory of
      the device, and the peak that the allocator reserves;
    - `spare_bytes`: the bytes left on each device, or on one device of each pipeline
      rank, in order.
    """

    seconds: float
    samples_per_s: float
    peak_bytes: int
    memory_bytes: int
    reserved_bytes: int
    spare_bytes: tuple[int, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the step fits into the memory of every device."""
        return max(self.peak_bytes, self.reserved_bytes) <= self.memory_bytes

    @staticmethod
    def of(simulated: Simulation | Step) -> Step:
        """
        Returns the step of a simulation. If `simulated` is a Step already, returns it
        unchanged.
        """
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
        Returns a step of `seconds` on `devices`. Each device is given as three numbers
        of bytes: the peak of a program's values, its memory, and the peak that the
        allocator reserves.
        """
        peak, memory, reserved = min(devices, key=lambda d: d[1] - d[2])
        spare = tuple(memory - reserved for _, memory, reserved in devices)
        return Step(seconds, samples_per_s, peak, memory, reserved, spare)


PipelineStep = Callable[[ModuleOp, PipelineOptions, bool], Step | None]
"""
A function that simulates the step of a pipeline without building it. Its arguments are
the partitioned program, which it may modify, the pipeline's options, and whether
collectives are grouped into buckets. It returns None if the pipeline must be built to
be simulated.
"""


@dataclass(frozen=True)
class FittedPlan:
    """
    A distributed program with its simulation.

    - `annotated`: the program with the layouts as annotations, before `partition`;
    - `module`: the distributed program, or the program of one micro-batch if the
      pipeline was simulated without building its program;
    - `simulated`: the simulation of the program, or the simulated step of such a
      pipeline;
    - `occupied`: the used fraction of the memory of the fullest device;
    - `needed`: the bytes used on that device;
    - `layouts`: the layouts chosen;
    - `found`: the result of the layout search, or None if this plan had no search;
    - `divided`: for a pipeline, the program of one micro-batch before it became the
      pipeline. Its ops are marked with stages if the stages were searched;
    - `limit`: the bytes per device that limited the layout search, or None if this plan
      had no search;
    - `base`: if the plan was searched with the costs of sends between stages, the plan
      that was found without them.
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
        """The simulated time and memory of a step."""
        return Step.of(self.simulated)

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory."""
        return self.occupied <= 1

    @property
    def rank(self) -> tuple[int, float]:
        """
        A sort key for plans, best first. Plans that fit come first, ordered by the time
        of a step. Plans that do not fit follow, ordered by the used fraction of the
        fullest device's memory.
        """
        return (0, self.step.seconds) if self.fits else (1, self.occupied)
