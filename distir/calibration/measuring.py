"""Measures a machine: from probes to a `MeasuredMachine`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distir.calibration.communication_probes import communication_probes
from distir.calibration.compute_probes import compute_probes
from distir.calibration.fit import LinkFit, Sample, fit_communication
from distir.calibration.kernel_probes import kernel_probes
from distir.calibration.machine import SEND, MeasuredMachine
from distir.calibration.probe import CommunicationProbe, Probe, Prober
from distir.calibration.samples import fit_ops
from distir.dialects.kernel import KernelDefOp
from distir.errors import DistIRError, one_of
from distir.launch.options import BACKENDS
from distir.launch.timing import (
    TimedPackage,
    Timings,
    TimingSettings,
    time_packages,
    timing_spawner,
    typical,
)
from distir.lowering.torch_package import write_package

Log = Callable[[str], None]

GPU_SCALE = 16
"""The factor by which tensors are larger when GPUs are measured."""

Timer = Callable[[Sequence[Probe]], tuple[list[float], str, int]]
"""
A function from probes to the seconds of each probe, the name of the device and its
memory in bytes.
"""


@dataclass(frozen=True)
class Settings:
    """
    Settings for the measurement of a machine.

    - `backend`: `gloo` measures CPUs, with one core as a device; `nccl` measures GPUs;
    - `devices`: the number of devices that work at the same time, as in a distributed
      program; with one device, no communication is measured;
    - `element`: the element type of all tensors;
    - `rounds`: the number of times that each probe is measured;
    - `tolerance`: the largest accepted mean error of a fit; probes of a fit with a
      larger error are measured again, up to `repeats` times;
    - `kernels`: users' kernels that are measured too; `files`: the files that contain
      them.
    """

    backend: str = "gloo"
    devices: int = 2
    element: str = "f32"
    rounds: int = 3
    tolerance: float = 0.25
    repeats: int = 2
    kernels: tuple[KernelDefOp, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the kind of devices: `core` or `gpu`."""
        return "core" if self.backend == "gloo" else "gpu"

    @property
    def timing(self) -> TimingSettings:
        """
        How probes are timed. On CPUs, probes take turns, so that the data of a probe is
        as far away from the core as in a program. On GPUs, many calls of a probe are
        timed in a row, because the GPU works while the host issues the next calls.
        """
        if self.backend == "gloo":
            return TimingSettings(rounds=self.rounds, warm_up=1, samples=8, in_turn=2)
        return TimingSettings(rounds=self.rounds, warm_up=2, samples=7, least_s=5e-3)


def calibrate(
    settings: Settings, log: Log, timer: Timer | None = None
) -> MeasuredMachine:
    """
    Measures this machine and fits a profile to the measurements. `timer`, if given,
    supplies the times of probes, and this machine is not timed. Raises DistIRError if
    settings are invalid, if a probe fails, or if there are too few measurements to fit.
    """
    one_of("backend", settings.backend, BACKENDS)
    if settings.devices not in (1, 2):
        raise DistIRError(
            f"calibration needs 1 device, or 2 to measure links too, not "
            f"{settings.devices}; the profile serves any number of them"
        )
    scale = 1 if settings.backend == "gloo" else GPU_SCALE
    computing = compute_probes(settings.element, scale)
    computing += kernel_probes(settings.kernels)
    talking = (
        communication_probes(settings.element, scale) if settings.devices > 1 else []
    )
    probes = _mixed(computing, talking)
    log(f"measuring {len(probes)} programs on {settings.devices} x {settings.kind}")

    def measured(probes: Sequence[Probe]) -> tuple[list[float], str, int]:
        return _timed(probes, settings, log) if timer is None else timer(probes)

    seconds, device, memory = measured(probes)
    machine = _fitted(probes, seconds, device, memory, settings)
    for _ in range(settings.repeats):
        names = {r.name for r in machine.disagreeing(settings.tolerance)}
        again = [i for i, p in enumerate(probes) if _filed(p) in names]
        if not again:
            break
        log(f"measuring again what does not fit: {', '.join(sorted(names))}")
        # Disturbances only make a measurement longer.
        for i, took in zip(again, measured([probes[i] for i in again])[0], strict=True):
            seconds[i] = min(seconds[i], took)
        machine = _fitted(probes, seconds, device, memory, settings)
    return machine


def _fitted(
    probes: Sequence[Probe],
    seconds: Sequence[float],
    device: str,
    memory: int,
    settings: Settings,
) -> MeasuredMachine:
    """
    Returns the machine with the figures that best fit `seconds`, the measured seconds
    of each of `probes`.
    """
    local = [
        (p, s)
        for p, s in zip(probes, seconds, strict=True)
        if not isinstance(p, CommunicationProbe)
    ]
    ops = fit_ops([p for p, _ in local], [s for _, s in local])
    return MeasuredMachine(
        name="machine",
        device=settings.kind,
        devices=settings.devices,
        memory=memory,
        ops=ops,
        links=_links(probes, seconds),
        conditions=(
            f"measured by distir calibrate on {settings.devices} x {device} at the same "
            f"time, {settings.element}, backend {settings.backend}"
        ),
    )


def _mixed(first: Sequence[Probe], second: Sequence[Probe]) -> list[Probe]:
    """
    Returns the probes of both lists in one list, with `second` spread evenly over
    `first`.
    """
    places = [(i / len(first), p) for i, p in enumerate(first)]
    places += [((i + 0.5) / len(second), p) for i, p in enumerate(second)]
    return [probe for _, probe in sorted(places, key=lambda place: place[0])]


def _timed(
    probes: Sequence[Probe], settings: Settings, log: Log
) -> tuple[list[float], str, int]:
    with tempfile.TemporaryDirectory(prefix="distir-") as name, timing_spawner() as s:
        prober, folder = Prober(), Path(name)

        def timed(chosen: Sequence[Probe], timing: TimingSettings) -> Timings:
            packages = [
                TimedPackage(
                    write_package(
                        prober.module(probe), folder / str(i), kernels=settings.files
                    ),
                    probe.below,
                )
                for i, probe in enumerate(chosen)
            ]
            return time_packages(
                packages,
                settings.devices,
                timing,
                spawner=s,
                backend=settings.backend,
                progress=log,
            )

        # Detects missing devices before all packages are written.
        timed(probes[:1], TimingSettings(rounds=1, warm_up=0, samples=1))
        timings = timed(probes, settings.timing)
    return [typical(t) for t in timings.times], timings.device, timings.memory


def _filed(probe: Probe) -> str:
    """
    Returns the name under which a profile lists the figures that are fitted to this
    probe.
    """
    return probe.kind if isinstance(probe, CommunicationProbe) else probe.name


def _links(probes: Sequence[Probe], seconds: Sequence[float]) -> dict[str, LinkFit]:
    """
    Returns the figures of each kind of communication, fitted to the differences between
    the seconds of probes and of the same probes without communication.
    """
    talking = [
        (p, s)
        for p, s in zip(probes, seconds, strict=True)
        if isinstance(p, CommunicationProbe)
    ]
    silent = {(p.kind, p.size): s for p, s in talking if p.silent}
    samples: dict[str, list[Sample]] = {}
    for probe, took in talking:
        if not probe.silent:
            # Sends go there and back.
            count = 2 if probe.kind == SEND else 1
            own = (took - silent[probe.kind, probe.size]) / count
            sample = Sample(0.0, probe.size, own, took / count)
            samples.setdefault(probe.kind, []).append(sample)
    return {kind: fit_communication(kind, found) for kind, found in samples.items()}
