"""
How well the simulator predicts real runs: `python bench/cpu_runs.py` measures this machine as
`distir calibrate` does, predicts the programs of `cpu_programs.py` from that alone, runs each
on two processes with one thread (gloo), and compares. It takes some 5 minutes and needs both
cores for itself.

`--write` puts the outcome into docs/benchmarks.md and docs/cpu_runs.svg; `--save` keeps the
numbers, `--load` compares saved ones again. `--models` and `--launches` make it shorter.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from cpu_programs import MODELS, Case, cases
from scatter_plot import scatter_plot

from distir.calibration import MeasuredMachine, Settings, calibrate
from distir.interpreters.simulator import simulate
from distir.launch.timing import (
    TimedPackage,
    Timing,
    TimingSettings,
    time_packages,
    timing_spawner,
    typical,
)
from distir.lowering.torch_package import write_package
from distir.planning.plans.rank_correlation import rank_correlation

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEADING = "## Against real runs on the CPU"
TIMING = TimingSettings(rounds=1, warm_up=1, samples=5)


@dataclass(frozen=True)
class Row:
    """One program: seconds of a step as predicted and as measured."""

    model: str
    distribution: str
    batch: int
    predicted: float
    measured: float


def predict(
    chosen: Sequence[Case], machine: MeasuredMachine, folder: Path
) -> list[float]:
    """Writes a package for each program, and simulates it."""
    cluster, profile = machine.cluster(), machine.profile()
    steps = {case.model: case.model.training_step() for case in chosen}
    found: list[float] = []
    for i, case in enumerate(chosen):
        module = case.distributed(steps[case.model], cluster)
        found.append(simulate(module, profiles=[profile]).step_time_s)
        write_package(module, folder / str(i))
    return found


def measure(chosen: Sequence[Case], folder: Path, launches: int) -> list[float]:
    """
    Returns the seconds of a step of each program, over several launches of the processes.
    """
    packages = [
        TimedPackage(folder / str(i), below=case.model.vocab or 2)
        for i, case in enumerate(chosen)
    ]
    rounds: list[Timing] = [[] for _ in chosen]
    for launch in range(launches):
        log(f"launch {launch + 1} of {launches}")
        with timing_spawner() as spawner:
            timings = time_packages(packages, 2, TIMING, spawner=spawner)
        for own, new in zip(rounds, timings.times, strict=True):
            own += new
    return [typical(own) for own in rounds]


def by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Returns the rows of each model."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.model, []).append(row)
    return found


def mean_error(rows: Sequence[Row]) -> float:
    """Returns the mean of relative errors."""
    return float(np.mean([abs(r.predicted / r.measured - 1) for r in rows]))


def ranking(rows: Sequence[Row]) -> float:
    """Returns the rank correlation of predicted and measured throughput."""
    return rank_correlation(
        [r.batch / r.predicted for r in rows], [r.batch / r.measured for r in rows]
    )


def summary(rows: Sequence[Row], conditions: str) -> str:
    """Returns the section of docs/benchmarks.md."""
    models = by_model(rows)
    within = {name: ranking(some) for name, some in models.items()}
    lines = [
        HEADING,
        "",
        f"`python bench/cpu_runs.py`: {len(rows)} training steps on two processes with one "
        f"thread each (gloo), predicted from a profile that `distir calibrate` fitted to "
        f"micro-benchmarks of single ops and collectives just before ({conditions}). No "
        f"figure is fitted to the programs; how the micro-benchmarks are called "
        f"([profiles.md](profiles.md#calibrating)) was chosen with some of them at hand.",
        "",
        f"- **Spearman of predicted and measured throughput: {ranking(rows):.3f}** (target "
        f"0.95);",
        f"- within one model and size, where the range of sizes does not help: "
        f"{np.mean(list(within.values())):.3f} in the mean, {min(within.values()):.3f} to "
        f"{max(within.values()):.3f};",
        f"- mean absolute error of the step time: {mean_error(rows):.1%}.",
        "",
        "![predicted over measured throughput](cpu_runs.svg)",
        "",
        "| model | programs | step, fastest to slowest | Spearman within | mean error |",
        "|---|---|---|---|---|",
    ]
    for name, some in models.items():
        times = [r.measured * 1e3 for r in some]
        lines.append(
            f"| {name} | {len(some)} | {min(times):.1f} to {max(times):.1f} ms | "
            f"{within[name]:.3f} | {mean_error(some):.1%} |"
        )
    distributions = sorted({r.distribution for r in rows})
    lines += [
        "",
        f"Each model is distributed in {len(distributions)} ways: "
        f"{', '.join(f'`{d}`' for d in distributions)}. A step's time is the least over the "
        f"launches of the median of its steps.",
        "",
    ]
    return "\n".join(lines)


def write_docs(rows: Sequence[Row], conditions: str) -> None:
    """Replaces the section in docs/benchmarks.md and the plot."""
    path = DOCS / "benchmarks.md"
    text = path.read_text("utf-8")
    section = summary(rows, conditions)
    pattern = re.compile(rf"^{re.escape(HEADING)}$.*?(?=^## |\Z)", re.M | re.S)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text)
    else:
        text = f"{text.rstrip()}\n\n{section}"
    path.write_text(text.rstrip() + "\n", "utf-8")
    series = {
        name: [
            (r.distribution, r.batch / r.measured, r.batch / r.predicted) for r in some
        ]
        for name, some in by_model(rows).items()
    }
    title = f"{len(rows)} programs on two processes: Spearman {ranking(rows):.3f}"
    (DOCS / "cpu_runs.svg").write_text(
        scatter_plot(title, "samples/s", series), "utf-8"
    )


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def run(models: Sequence[str], launches: int) -> tuple[list[Row], str]:
    """Calibrates, predicts, measures."""
    chosen = [c for c in cases() if not models or c.model.name in models]
    load = os.getloadavg()[0]
    machine = calibrate(Settings(), log)
    worst = max(machine.residuals, key=lambda r: r.mean)
    log(f"calibrated; the worst fit is {worst.name}: {worst}")
    with tempfile.TemporaryDirectory() as name:
        predicted = predict(chosen, machine, Path(name))
        log(f"predicted {len(chosen)} programs")
        measured = measure(chosen, Path(name), launches)
    rows = [
        Row(case.model.name, case.distribution, case.model.batch, p, m)
        for case, p, m in zip(chosen, predicted, measured, strict=True)
    ]
    urgent = os.sched_getscheduler(0) != os.SCHED_OTHER
    return rows, (
        f"{machine.conditions}; load average before: {load:.1f}"
        f"{', processes with real-time priority' if urgent else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=[m.name for m in MODELS])
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.load is not None:
        saved = json.loads(arguments.load.read_text("utf-8"))
        rows, conditions = [Row(**row) for row in saved["rows"]], saved["conditions"]
    else:
        rows, conditions = run(arguments.models or (), arguments.launches)
    if arguments.save is not None:
        saved = {"conditions": conditions, "rows": [asdict(row) for row in rows]}
        arguments.save.write_text(json.dumps(saved, indent=1), "utf-8")
    for row in rows:
        print(
            f"{row.model:24} {row.distribution:20} predicted {row.predicted * 1e3:8.2f} ms, "
            f"measured {row.measured * 1e3:8.2f} ms ({row.predicted / row.measured - 1:+.0%})"
        )
    print(summary(rows, conditions))
    if arguments.write:
        write_docs(rows, conditions)


if __name__ == "__main__":
    main()
