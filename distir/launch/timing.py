"""
Times packages on this machine: every rank is a process, and all ranks time each call
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
Without them, earlier frees decide whether a new tensor costs page faults.
"""


def timing_spawner() -> Spawner:
    """
    Returns a spawner whose processes time all packages under the same memory settings.
    """
    return Spawner(STEADY_MEMORY)


@dataclass(frozen=True)
class TimedPackage:
    """
    A package written by `write_package`, and the settings of its random arguments.
    Integer arguments are less than `below`. Calls use several sets of arguments in
    turn, of at least `footprint` bytes together, so that the arguments do not stay in a
    smaller cache.
    """

    folder: Path
    below: int = 2
    footprint: int = 0


@dataclass(frozen=True)
class TimingSettings:
    """
    Settings for timing packages.

    Every package has a turn in each of `rounds` rounds, so that a disturbance affects
    all packages. In a turn, a package is called `warm_up` times and timed `samples`
    times. Each timing covers a number of calls in a row that takes about `least_s`
    seconds.

    With `in_turn` above 0, packages are timed with the caches that an op finds in a
    program. In each turn, the first call is not timed, and the next `in_turn` calls
    are. Each call gets different arguments, and its inputs are written just before it.
    So code and activations are in the caches, but parameters are not.
    """

    rounds: int = 3
    warm_up: int = 2
    samples: int = 7
    least_s: float = 0.0
    in_turn: int = 0


Timing = list[list[float]]
"""Seconds per call of one package: for each round, a list of samples."""


@dataclass(frozen=True)
class Timings:
    """
    The `times` of packages, with the name of the device and its memory in bytes.
    `peaks` has, for each package, the peak of allocated bytes on the process with the
    largest peak; a peak is 0 on CPUs, where it is not counted.
    """

    times: list[Timing]
    peaks: list[int]
    device: str
    memory: int


def typical(rounds: Timing) -> float:
    """
    Returns the smallest of the rounds' medians, because a disturbance makes a round
    slower, never faster. A median keeps the variation within a round, such as the time
    to wake a thread, which also occurs in programs.
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
    Times packages in the same `ranks` processes. A package must need `ranks` processes,
    or one process; every rank runs a package of one process independently. On the CPU,
    each process has one thread. Raises DistIRError if there are no packages, or a
    process fails.
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
