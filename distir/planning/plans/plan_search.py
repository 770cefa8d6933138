"""The common base of all searches for a plan, and the results of a search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distir.errors import DistIRError
from distir.planning.grid.results import pareto_front, ranked
from distir.planning.plans.plan import Plan
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Result, Simulated
from distir.system.output_files import write_text


@dataclass(frozen=True)
class SearchResults:
    """
    All results of a search, in the order of their plans. `finished` says whether the
    search ran to its end. `measured` maps each plan that was run on devices to its
    measured seconds per step.
    """

    results: Sequence[Result]
    finished: bool
    measured: Mapping[Plan, float]

    @property
    def ranked(self) -> list[Simulated]:
        """The results of the plans that fit into memory, highest throughput first."""
        return ranked(self.results)

    @property
    def pareto_front(self) -> list[Simulated]:
        """
        The results on the Pareto front of throughput and memory, among the results that
        fit into memory. No other result is better than one of these in throughput
        without being worse in memory, or the other way round.
        """
        return pareto_front(self.results)

    def to_json(self) -> dict[str, Any]:
        """Returns the results as the JSON data that `distir search --json` writes."""
        return {
            "finished": self.finished,
            "best": [o.to_json() for o in self.ranked[:1]],
            "pareto_front": [o.to_json() for o in self.pareto_front],
            "outcomes": [o.to_json() for o in self.results],
        }

    def save(self, path: str | Path) -> None:
        """
        Writes the results to a JSON file. Raises DistIRError if the file cannot be
        written.
        """
        try:
            write_text(path, json.dumps(self.to_json(), indent=2) + "\n")
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error


class PlanSearch:
    """
    A search for the best plan. `programs` holds the programs to distribute, one for
    each batch size. `results` maps each plan judged so far to its result. `measured`
    maps each plan that was run on devices to its measured seconds per step. `finished`
    says whether the search ran to its end, `interrupted` whether the user stopped it.
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
        The result with the highest throughput that fits into memory, or None if there
        is none. If plans were run on devices, only these plans are compared, by
        measured throughput; else all plans are compared by simulated throughput.
        """
        found = ranked(self.results.values())
        if self.measured:
            found = [result for result in found if result.plan in self.measured]
            found.sort(key=lambda r: -r.plan.batch / self.measured[r.plan])
        return found[0] if found else None

    def outcomes(self) -> SearchResults:
        """Returns the results of all plans judged so far."""
        results = sorted(self.results.values(), key=lambda result: result.plan)
        return SearchResults(results, self.finished, dict(self.measured))

    def measured_note(self) -> str | None:
        """
        Returns a note that the chosen plan was the fastest of the plans run on devices,
        or None if no plan was run.
        """
        best = self.best
        if best is None or best.plan not in self.measured:
            return None
        return (
            f"the search chose {best.plan}, the fastest of {len(self.measured)} plans that "
            f"were run: {self.measured[best.plan]:.4g} s a step, "
            f"{best.step_time_s:.4g} s by the simulator"
        )
