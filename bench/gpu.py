"""
`make gpu`: everything that needs a GPU, on the 1 to 8 of this machine, written to docs/gpu.md.

    python bench/gpu.py [--dry-run] [--devices 1] [--only tests ...]

- `tests`: those that are marked `gpu`: kernels and gradients in f32 and bf16, ranks over NCCL;
- `calibrate`: what `distir calibrate` measures, with the part that its fits leave unexplained;
- `programs`: time and memory of 30 programs for two devices, or for one where there is no
  second, predicted from that profile and measured;
- `mixed`: programs in bf16, predicted with the profile that DistIR has of the card;
- `training`: `distir.parallelize` beside PyTorch, in mixed precision, with dropout, ...;
- `pytorch`: generated programs beside PyTorch by hand, eager and compiled.

What the machine has too few GPUs for is skipped and named. `--dry-run` takes the same way
through the code on the CPU, with gloo, and fewer programs; it prints the document, as its
numbers say nothing about GPUs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import gpu_mixed
import gpu_training
import torch
from against_torch import ROWS, Outcome, as_table, compare, imported
from cpu_programs import ALONE, MODELS, Case, Model
from report import table
from torch_models import MODELS as BENCHED

from distir.calibration import MeasuredMachine, Settings, calibrate
from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate
from distir.launch.memory import count_memory
from distir.launch.timing import (
    TimedPackage,
    TimingSettings,
    time_packages,
    timing_spawner,
    typical,
)
from distir.lowering.torch_package import write_package

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "gpu.md"
TIMING = TimingSettings(rounds=1, warm_up=2, samples=5)
PROGRAMS = 30
LARGER = (
    Model(8, 2048, 512),
    Model(4, 4096, 1024),
    Model(4, 1024, 8, heads=16, vocab=16384, seq=512),
    Model(8, 1024, 16, heads=16, vocab=32768, seq=256),
    Model(4, 2048, 8, heads=16, vocab=32768, seq=512),
    Model(16, 1024, 256),
    Model(4, 8192, 2048),
    Model(12, 768, 8, heads=12, vocab=50304, seq=512),
    Model(2, 4096, 4, heads=32, vocab=32768, seq=512),
    Model(8, 2048, 4, heads=16, vocab=32768, seq=1024),
)
"""
Models that a GPU has something to do with: `PROGRAMS` with the first five on two devices, with
all of them on one.
"""
WAYS = ("d=2", "d=2 zero=1", "d=2 zero=3", "d=2 checkpoint", "t=2", "p=2 k=4")


@dataclass(frozen=True)
class Place:
    """Where it all runs: on `devices` GPUs, or on cores in a dry run."""

    dry: bool
    devices: int

    @property
    def backend(self) -> str:
        return "gloo" if self.dry else "nccl"

    @property
    def name(self) -> str:
        if self.dry:
            return "a dry run on the CPU"
        return f"{self.devices} x {torch.cuda.get_device_name(0)}"

    @cached_property
    def machine(self) -> MeasuredMachine:
        """This machine as `distir calibrate` measures it."""
        devices = min(2, self.devices)
        settings = Settings(self.backend, devices, "f32")
        if self.dry:
            settings = Settings(self.backend, devices, "f32", rounds=1, repeats=0)
        return calibrate(settings, log)


def log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def tests(place: Place) -> str:
    """Runs the tests that are marked `gpu`."""
    environment = {**os.environ, "DISTIR_GPU_DEVICE": "cpu" if place.dry else "cuda"}
    command = [sys.executable, "-m", "pytest", "-rsf", "-m", "gpu", "test"]
    if place.dry:
        command[-1] = "test/launch/test_gpu.py"
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode:
        log(done.stdout[-4000:])
    said = [line for line in lines if re.match(r"(SKIPPED|FAILED|ERROR)", line)]
    counts = [line.strip("= ") for line in lines if re.search(r"\d+ \w+ in ", line)]
    how = "nothing failed" if done.returncode == 0 else "there are failures"
    summary = f"{how}{': ' if counts else ''}{counts[-1] if counts else ''}"
    listed = "".join(f"\n- {line}" for line in said)
    return f"`pytest -m gpu`: {summary}.\n{listed}"


def calibration(place: Place) -> str:
    """What was measured of the machine."""
    machine = place.machine
    residuals = sorted(machine.residuals, key=lambda r: -r.mean)
    rows = [
        [r.name, str(r.samples), f"{r.mean:.1%}", f"{r.largest:.1%}"] for r in residuals
    ]
    peaks = ", ".join(f"{n}: {x / 1e12:.3g}" for n, x in machine.peak_flops.items())
    return (
        f"{machine.name}: {peaks} TFLOP/s, {machine.memory_bandwidth / 1e9:.4g} GB/s, "
        f"{machine.memory / 1e9:.3g} GB.\n\n"
        + table(["what", "measurements", "mean error", "largest"], rows)
    )


def chosen(place: Place) -> list[tuple[Model, list[Case]]]:
    """The programs to predict and to run, by model."""
    ways = WAYS if place.devices > 1 else tuple(ALONE)
    models = MODELS[4:5] if place.dry else LARGER[: PROGRAMS // len(ways)]
    return [(model, [Case(model, way) for way in ways]) for model in models]


@dataclass(frozen=True)
class Program:
    """A program's seconds of a step and bytes, as they were predicted and measured."""

    case: Case
    predicted: float
    measured: float
    predicted_bytes: int
    measured_bytes: int

    @property
    def row(self) -> list[str]:
        numbers = (self.predicted * 1e3, self.measured * 1e3)
        memory = (self.predicted_bytes / 1e6, self.measured_bytes / 1e6)
        return [
            self.case.model.name,
            self.case.distribution,
            *(f"{number:.2f}" for number in numbers),
            *(f"{number:.1f}" for number in memory),
            f"{memory[0] / memory[1]:.3f}",
        ]


def measured(place: Place, cases: Sequence[Case], folder: Path) -> list[Program]:
    """Predicts and runs the programs of one model. Raises DistIRError."""
    cluster, profile = place.machine.cluster(), place.machine.profile()
    step = cases[0].model.training_step()
    simulations: list[Simulation] = []
    packages: list[TimedPackage] = []
    for i, case in enumerate(cases):
        module = case.distributed(step, cluster)
        simulations.append(simulate(module, profiles=[profile]))
        package = write_package(module, folder / str(i))
        packages.append(TimedPackage(package, below=case.model.vocab or 2))
    with timing_spawner() as own:
        timings = time_packages(
            packages,
            min(2, place.devices),
            TIMING,
            spawner=own,
            backend=place.backend,
            progress=log,
        )
        peaks = timings.peaks
        if place.dry:  # nobody counts on the CPU
            counts = [count_memory(p.folder, spawner=own) for p in packages]
            peaks = [max(memory.peak for memory in counted) for counted in counts]
    return [
        Program(
            case,
            simulation.step_time_s,
            typical(times),
            max(simulation.peak_memory_bytes),
            peak,
        )
        for case, simulation, times, peak in zip(
            cases, simulations, timings.times, peaks, strict=True
        )
    ]


def programs(place: Place) -> str:
    """Predicted and measured time and memory."""
    found: list[Program] = []
    failed: list[str] = []
    for model, cases in chosen(place):
        log(model.name)
        try:
            with tempfile.TemporaryDirectory(prefix="distir-") as name:
                found += measured(place, cases, Path(name))
        except DistIRError as error:
            failed.append(f"{model.name}: {error}")
    notes = "".join(f"\n- not measured: {each}" for each in failed)
    if not found:
        return f"No program was measured.\n{notes}"
    how = "`count_memory`" if place.dry else "`torch.cuda.max_memory_allocated`"
    head = ["model", "distribution", "predicted ms", "measured ms"]
    head += ["predicted MB", "measured MB", "predicted / measured"]
    time_ratio = median(each.predicted / each.measured for each in found)
    memory_ratio = median(each.predicted_bytes / each.measured_bytes for each in found)
    where = "two devices" if place.devices > 1 else "one device"
    return (
        f"{len(found)} programs on {where}; memory by {how}. Medians of predicted over "
        f"measured: time {time_ratio:.2f}, memory {memory_ratio:.3f}.\n\n"
        f"{table(head, [each.row for each in found])}\n{notes}"
    )


def beside_pytorch(place: Place) -> str:
    """Generated programs beside PyTorch by hand."""
    arguments = argparse.Namespace(
        samples=3 if place.dry else 21,
        backend=place.backend,
        buckets=True,
        keep=None,
    )
    outcomes: list[Outcome] = []
    skipped: list[str] = []
    names = ["step"] if place.dry else list(ROWS)
    for model in ("gpt2",) if place.dry else BENCHED:
        for name in names:
            row, benched = ROWS[name], BENCHED[model]
            if getattr(benched, row.needs) is None:
                continue
            if row.processes > place.devices:
                skipped.append(f"{model} `{name}` needs {row.processes} devices")
                continue
            log(f"{model}, {name}")
            found = imported(benched, name, row.batches)
            try:
                outcomes.append(compare(model, name, arguments, found))
            except DistIRError as error:
                skipped.append(f"{model} `{name}`: {error}")
    notes = "".join(f"\n- not compared: {each}" for each in skipped)
    return f"{as_table(outcomes)}\n{notes}"


def training(place: Place) -> str:
    """`distir.parallelize` beside PyTorch."""
    return gpu_training.beside_pytorch(place.dry, log)


def mixed(place: Place) -> str:
    """Programs in bf16, predicted with the profile that DistIR has of the card."""
    return gpu_mixed.as_text(place.name, place.dry, log)


SECTIONS: dict[str, tuple[str, Callable[[Place], str]]] = {
    "tests": ("Tests", tests),
    "calibrate": ("What the machine reaches", calibration),
    "programs": ("Predicted and measured", programs),
    "mixed": ("Predicted with the built-in profile", mixed),
    "training": ("Training scripts", training),
    "pytorch": ("Beside PyTorch by hand", beside_pytorch),
}


def document(place: Place, names: Sequence[str]) -> str:
    """The whole text."""
    parts = ["# GPUs\n", "`make gpu` writes this page (`bench/gpu.py`).\n"]
    if place.dry:
        parts.append(
            "**A dry run**: the same code on the CPU with gloo, with fewer programs. It shows "
            "that the command works; its numbers say nothing about GPUs. What programs call "
            "on CUDA is checked on tensors without values "
            "(test/lowering/test_cuda_calls.py).\n"
        )
    else:
        parts.append(f"Measured on {place.name}, PyTorch {torch.__version__}.\n")
    left = [name for name in SECTIONS if name not in names]
    if left:
        parts.append(f"Left out of this run: {', '.join(left)}.\n")
    for name in names:
        title, section = SECTIONS[name]
        log(title)
        parts.append(f"## {title}\n\n{section(place).strip()}\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with gloo")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--devices", type=int, default=8, help="use at most so many")
    parser.add_argument("--print", action="store_true", help="do not write docs/gpu.md")
    arguments = parser.parse_args()
    count = torch.cuda.device_count()
    if arguments.devices < 1:
        raise SystemExit("error: --devices: at least one is needed")
    if not count and not arguments.dry_run:
        raise SystemExit(
            "error: this machine has no GPU that PyTorch can use, so that nothing was run; "
            "`make gpu DRY=1` tries the same on the CPU"
        )
    most = 2 if arguments.dry_run else min(count, 8)
    place = Place(arguments.dry_run, min(arguments.devices, most))
    try:
        text = document(place, arguments.only or list(SECTIONS))
    except DistIRError as error:
        raise SystemExit(f"error: {error}") from error
    if arguments.print or place.dry:
        print(text)
    else:
        DOCUMENT.write_text(text, encoding="utf-8")
        log(f"wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
