"""Times the steps of distributed programs, with processes on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from xdsl.dialects.builtin import ModuleOp

from distir.launch.packages import OutOfMemory, Spawner
from distir.launch.timing import (
    TimedPackage,
    Timing,
    TimingSettings,
    time_packages,
    timing_spawner,
    typical,
)
from distir.lowering.torch_package import write_package
from distir.transforms.projection.program import devices_of


@dataclass(frozen=True)
class StepTiming:
    """
    Settings for timing steps. The processes are launched `launches` times. Each launch
    takes `warm_up` steps, then times `samples` steps. `backend` is `gloo` for the cores
    of the CPU or `nccl` for GPUs. A launch fails after `timeout_s` seconds without a
    result.
    """

    backend: str = "gloo"
    launches: int = 3
    warm_up: int = 1
    samples: int = 5
    timeout_s: float = 600.0


class StepTimer:
    """
    Times steps of distributed programs with one process of this machine for each
    device. Parameters and inputs are random. As a context manager, it keeps its spawner
    process between calls of `seconds`.
    """

    def __init__(self, timing: StepTiming | None = None):
        self.timing = timing or StepTiming()
        self._stack = ExitStack()
        self._spawner: Spawner | None = None

    def __enter__(self) -> Self:
        self._spawner = self._stack.enter_context(timing_spawner())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def seconds(self, modules: Sequence[ModuleOp]) -> list[float | None]:
        """
        Returns the seconds of one step of each program in `modules`. An entry is None
        if the program runs out of memory. The time is the median over the steps of a
        launch, and the minimum over launches. Programs with the same number of devices
        are timed in turn in the same processes, so that a disturbance affects all of
        them. Raises DistIRError if a program cannot be lowered or a process fails.
        """
        with tempfile.TemporaryDirectory(prefix="distir-") as name:
            packages = [Path(name) / str(i) for i in range(len(modules))]
            for module, folder in zip(modules, packages, strict=True):
                write_package(module, folder)
            found: dict[Path, float | None] = {}
            counts = [len(devices_of(module)) for module in modules]
            for count in sorted(set(counts)):
                alike = [p for p, n in zip(packages, counts, strict=True) if n == count]
                found |= self._timed(alike, count)
            return [found[folder] for folder in packages]

    def _timed(self, folders: Sequence[Path], ranks: int) -> dict[Path, float | None]:
        """
        Returns the seconds of a step of packages for `ranks` processes. The packages
        are timed together, or one by one if memory does not suffice. A package that
        runs out of memory alone gets None.
        """
        try:
            return dict(zip(folders, self._together(folders, ranks), strict=True))
        except OutOfMemory:
            if len(folders) == 1:
                return {folders[0]: None}
        found: dict[Path, float | None] = {}
        for folder in folders:
            found |= self._timed([folder], ranks)
        return found

    def _together(self, folders: Sequence[Path], ranks: int) -> list[float]:
        timing = self.timing
        settings = TimingSettings(
            rounds=1, warm_up=timing.warm_up, samples=timing.samples
        )
        assert self._spawner is not None
        rounds: list[Timing] = [[] for _ in folders]
        for _ in range(timing.launches):
            timed = time_packages(
                [TimedPackage(folder) for folder in folders],
                ranks,
                settings,
                spawner=self._spawner,
                backend=timing.backend,
                timeout_s=timing.timeout_s,
            )
            for own, new in zip(rounds, timed.times, strict=True):
                own += new
        return [typical(own) for own in rounds]
