"""
How well the plans that a search predicts to be best do on this machine, and whether it ranks
them right: `python bench/measured_search.py [--machine machine.json]` measures the
machine as `distir calibrate` does (or takes what that wrote), searches plans on two processes
for a GPT and an MLP, and runs the ten best, as `distir search --measure 10` does. It takes
some minutes and needs both cores for itself. `--small` is a quick try.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from cpu_programs import Model

from distir.hardware import load_cluster
from distir.launch.step_times import StepTiming
from distir.planning.grid.search import GridSearch
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.rank_correlation import rank_correlation
from distir.tools.cli import main as distir
from distir.tools.plan_runs import report_runs, run_plans

MODELS = (
    Model(4, 256, 16, heads=8, vocab=1024, seq=64),
    Model(6, 512, 128),
)
SMALL = (Model(2, 64, 8, heads=4, vocab=128, seq=16), Model(2, 64, 16))


def search(model: Model, machine: Path, launches: int) -> str:
    """Searches and runs plans for a model; gives a line of what came out."""
    options = SearchOptions(
        profile=(str(machine),),
        world_size=2,
        zero=(0, 3),
        micro_batches=(2, 4),
        jobs=1,
    )
    cluster = load_cluster(str(machine.with_suffix(".mlir")), None)
    found = GridSearch([model.training_step()], cluster, options)
    found.run()
    runs = run_plans(found, 10, StepTiming(launches=launches))
    print(f"\n{model.name}")
    report_runs(runs)
    place = max(range(len(runs)), key=lambda i: runs[i].throughput)
    ran = [run for run in runs if run.seconds]
    correlation = rank_correlation(
        [run.result.throughput_samples_per_s for run in ran],
        [run.throughput for run in ran],
    )
    return (
        f"- {model.name}: the plan measured best of {len(runs)} is predicted best number "
        f"{place + 1} (goal 3); Spearman {correlation:.3f} (goal 0.9)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", type=Path, help="a profile of `distir calibrate`")
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        machine = arguments.machine
        if machine is None:
            machine = Path(name) / "machine.json"
            if distir(["calibrate", "-o", str(machine), "--tolerance", "1"]):
                raise SystemExit(1)
        models = SMALL if arguments.small else MODELS
        lines = [search(model, machine, arguments.launches) for model in models]
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
