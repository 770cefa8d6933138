"""What a search for a plan has found, whichever search it was."""

from __future__ import annotations

from distir.planning.grid.results import ranked
from distir.planning.plan import Plan
from distir.planning.programs import Programs
from distir.planning.result import Result, Simulated


class PlanSearch:
    """
    A search of plans for the best one: `programs`, for each size of the batch, are what is
    distributed, `results` what was judged so far. `finished` says whether it ended by
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
