"""
Runs the best plans of a search on this machine and compares them with the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distir.launch.step_times import StepTiming
    from distir.planning.plans.plan_search import PlanSearch
    from distir.planning.plans.result import Simulated


@dataclass(frozen=True)
class PlanRun:
    """
    A measured plan. `result` is the simulator's prediction. `seconds` is the measured
    time of a step, or None if the memory of the machine did not suffice.
    """

    result: Simulated
    seconds: float | None

    @property
    def throughput(self) -> float:
        """
        The measured throughput in samples per second, or 0 if the plan ran out of
        memory.
        """
        return 0.0 if self.seconds is None else self.result.plan.batch / self.seconds


def run_plans(search: PlanSearch, count: int, timing: StepTiming) -> list[PlanRun]:
    """
    Runs the `count` plans of a search that the simulator predicts to be fastest. The
    plans run on processes of this machine with random parameters and inputs. The plan
    with the shortest measured step becomes the best plan of the search. Returns the
    runs in the simulator's order. Raises DistIRError if a plan cannot be run, or if all
    plans run out of memory.
    """
    from distir.errors import DistIRError
    from distir.launch.step_times import StepTimer
    from distir.planning.grid.evaluate import distribute_as
    from distir.planning.grid.results import ranked

    chosen = ranked(search.results.values())[:count]
    modules = [search.programs(result.plan.batch) for result in chosen]
    for module, result in zip(modules, chosen, strict=True):
        programs = search.programs
        distribute_as(module, result, programs.requests, programs.profiles)
    with StepTimer(timing) as timer:
        seconds = timer.seconds(modules)
    runs = [PlanRun(r, s) for r, s in zip(chosen, seconds, strict=True)]
    search.measured = {r.result.plan: r.seconds for r in runs if r.seconds is not None}
    if not search.measured:
        raise DistIRError(
            f"search: none of the {len(runs)} plans that were run has enough memory on this "
            f"machine; measure on the cluster, or search for one with as much memory as it has"
        )
    return runs


def report_runs(runs: Sequence[PlanRun]) -> None:
    """
    Prints plans in the order of their measured throughput. Each line has the measured
    and the predicted step time. The last line has the rank correlation of measured and
    predicted throughput.
    """
    from distir.planning.plans.rank_correlation import rank_correlation
    from distir.tools.reports.reporting import seconds_text, table

    order = sorted(enumerate(runs), key=lambda each: -each[1].throughput)
    rows = [
        [
            str(run.result.plan),
            f"{run.throughput:.4g}" if run.seconds else "out of memory",
            seconds_text(run.seconds) if run.seconds else "",
            seconds_text(run.result.step_time_s),
            str(place + 1),
        ]
        for place, run in order
    ]
    headings = ["configuration", "samples/s", "step time", "predicted", "of rank"]
    print(f"\nthe {len(runs)} fastest, run on this machine")
    table(headings, rows)
    ran = [run for run in runs if run.seconds is not None]
    if len(ran) > 1:
        found = rank_correlation(
            [run.result.throughput_samples_per_s for run in ran],
            [run.throughput for run in ran],
        )
        print(f"rank correlation of predicted and measured throughput: {found:.3f}")
