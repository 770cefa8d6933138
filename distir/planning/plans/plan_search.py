"""What searches for a plan have in common."""

from __future__ import annotations

from distir.planning.grid.results import ranked
from distir.planning.plans.plan import Plan
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Result, Simulated


class PlanSearch:
    """
    A search for the best plan: `programs` are distributed, one for each size of the batch;
    `results` are the plans judged so far, `measured` the seconds of a step of those that
    were run. `finished` says whether the search ended by itself, `interrupted` whether the
    user ended it.
    """

    def __init__(self, programs: Programs):
        self.programs = programs
        self.results: dict[Plan, Result] = {}
        self.measured: dict[Plan, float] = {}
        self.finished = False
        self.interrupted = False

    @property
    def best(self) -> Simulated | None:
        """
        The plan with the highest throughput that fits, if one is known: among those that
        were run, if any was, else by simulation.
        """
        found = ranked(self.results.values())
        if self.measured:
            found = [result for result in found if result.plan in self.measured]
            found.sort(key=lambda r: -r.plan.batch / self.measured[r.plan])
        return found[0] if found else None

    def measured_note(self) -> str | None:
        """Returns a note on the choice among plans that were run; None if none was run."""
        best = self.best
        if best is None or best.plan not in self.measured:
            return None
        return (
            f"the search chose {best.plan}, the fastest of {len(self.measured)} plans that "
            f"were run: {self.measured[best.plan]:.4g} s a step, "
            f"{best.step_time_s:.4g} s by the simulator"
        )
