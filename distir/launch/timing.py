"""
Times packages on this machine: every rank is a process, and calls are timed on all of them
together.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from distir.errors import DistIRError
from distir.launch.packages import Progress, Spawner, run_script
from distir.system.output_files import write_text

STEADY_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
"""
Environment variables that make processes with glibc keep the memory that they free.
Otherwise it depends on what else was freed before whether a tensor costs page faults.
"""


def timing_spawner() -> Spawner:
    """Returns a spawner in which all packages are timed under the same conditions."""
    return Spawner(STEADY_MEMORY)


@dataclass(frozen=True)
class TimedPackage:
    """
    A package written by `write_package`, and the random arguments for it: integers are less
    than `below`; calls use several sets of arguments in turn, of `footprint` bytes
    together, so that they do not stay in a cache that is smaller.
    """

    folder: Path
    below: int = 2
    footprint: int = 0


@dataclass(frozen=True)
class TimingSettings:
    """
    Settings for timing packages. Every package has its turn in each of `rounds`, so
    that a disturbance affects all of them and not one. In a turn it is called `warm_up`
    times, then timed `samples` times, each time for so many calls in a row that they
    take about `least_s` seconds. With `in_turn`, packages alternate as the ops of a
    program do: in a turn, that many calls are timed after one that is not, each with
    other arguments, of which inputs were just written: so code and activations are in
    the caches, and parameters are not.
    """

    rounds: int = 3
    warm_up: int = 2
    samples: int = 7
    least_s: float = 0.0
    in_turn: int = 0


Timing = list[list[float]]
"""Seconds per call of one package: for each round, the samples."""


@dataclass(frozen=True)
class Timings:
    """
    The timings of packages, with the name of the device and its memory in bytes. `peaks` are
    the bytes that each package is given at most, on the process with the most; 0 where none
    are counted, on the CPU.
    """

    times: list[Timing]
    peaks: list[int]
    device: str
    memory: int


def typical(rounds: Timing) -> float:
    """
    Returns the least of the rounds' medians. A disturbance makes a round slower, never
    faster; what varies within a round, such as the time to wake a thread, varies in
    programs too.
    """
    return min(median(samples) for samples in rounds)


def time_packages(
    packages: Sequence[TimedPackage],
    ranks: int,
    settings: TimingSettings,
    *,
    spawner: Spawner,
    backend: str = "gloo",
    timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> Timings:
    """
    Times packages in the same `ranks` processes. A package needs that many processes, or
    one: then every rank runs it by itself. On the CPU each process has one thread. Raises
    DistIRError.
    """
    if not packages:
        raise DistIRError("there is no package to time")
    with tempfile.TemporaryDirectory(prefix="distir-") as name:
        folder = Path(name)
        job = {
            "ranks": ranks,
            "settings": asdict(settings),
            "packages": [
                {
                    "folder": str(package.folder.resolve()),
                    "below": package.below,
                    "footprint": package.footprint,
                }
                for package in packages
            ],
        }
        write_text(folder / "job.json", json.dumps(job))
        output = folder / "times.json"
        run_script(
            Path(__file__).with_name("timing_rank.py"),
            ["--job", str(folder / "job.json"), "--output", str(output)],
            ranks,
            folder,
            backend=backend,
            timeout_s=timeout_s,
            progress=progress,
            spawner=spawner,
            renews=True,
        )
        try:
            found = json.loads(output.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DistIRError(f"the timing left no result: {error}") from error
        device = found["device"]
        return Timings(found["times"], found["peaks"], device["name"], device["memory"])
