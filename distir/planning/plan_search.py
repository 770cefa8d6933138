"""What searches for a plan have in common."""

from __future__ import annotations

from distir.planning.grid.results import ranked
from distir.planning.plan import Plan
from distir.planning.programs import Programs
from distir.planning.result import Result, Simulated


class PlanSearch:
    """
    A search for the best plan: `programs` are distributed, one for each size of the batch;
    `results` are the plans judged so far. `finished` says whether the search ended by
    itself, `interrupted` whether the user ended it.
    """

    def __init__(self, programs: Programs):
        self.programs = programs
        self.results: dict[Plan, Result] = {}
        self.finished = False
        self.interrupted = False

    @property
    def best(self) -> Simulated | None:
        """The fastest plan that fits, if one is known."""
        found = ranked(self.results.values())
        return found[0] if found else None
