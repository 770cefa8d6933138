"""The search that `search-grid` runs: it judges all plans of a grid by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.planning.grid.bounds import Bounds
from distir.planning.grid.journal import Journal
from distir.planning.grid.runner import run
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import Plan, Space
from distir.planning.plans.plan_search import PlanSearch
from distir.planning.plans.programs import Programs, batch_of, trains


def _nobody(count: int) -> None:
    """Does nothing. It is the default for callers that do not follow the progress."""


class GridSearch(PlanSearch):
    """
    A search that judges all plans of a grid on a cluster. `modules` are the sequential
    programs, one per batch size. `plans` lists all plans in the ranges that the options
    give. The constructor raises DistIRError if the options contradict each other or do
    not suit the programs.
    """

    def __init__(
        self,
        modules: Sequence[ModuleOp],
        cluster: ClusterOp,
        options: SearchOptions,
        degrees: Sequence[tuple[int, int, int]] = (),
    ):
        super().__init__(Programs.of(modules, cluster, options.profile))
        if len({trains(module) for module in modules}) > 1:
            raise DistIRError(
                "some of the programs are training steps and some are not"
            )
        batches = sorted(map(batch_of, modules))
        space = Space.of(options, batches, trains(modules[0]), cluster.size, degrees)
        self.plans: Sequence[Plan] = space.plans()
        self._jobs = options.jobs
        self._cluster = cluster

    def leave_out_too_large(self) -> None:
        """
        Leaves out the plans whose parameters and optimizer states alone exceed the
        memory of a device. If this would leave out all plans, the plans that need the
        least memory stay, so that the results say how much is missing.
        """
        bounds = {
            batch: Bounds.of_memory(
                self.programs(batch), self._cluster, self._cluster.size
            )
            for batch in {plan.batch for plan in self.plans}
        }
        fitting = [plan for plan in self.plans if bounds[plan.batch].may_fit(plan)]
        if not fitting:
            sizes = [bounds[plan.batch].least_bytes(plan) for plan in self.plans]
            least = min(sizes)
            pairs = zip(self.plans, sizes, strict=True)
            fitting = [plan for plan, size in pairs if size == least]
        self.plans = fitting

    def run(
        self, journal: Path | None = None, on_progress: Callable[[int], None] = _nobody
    ) -> None:
        """
        Judges the plans.

        - `journal`: a file. Every result is written to the file at once, and results
          that the file already holds are not computed again;
        - `on_progress`: a function that is called with the number of new results.

        If the user interrupts, the search ends with the results so far. Raises
        DistIRError if the journal belongs to a search with different programs, profiles
        or requests, or if a process dies.
        """
        wanted = set(self.plans)
        with Journal(journal, self.programs) if journal else nullcontext() as known:
            before = known.results if known else []
            self.results |= {r.plan: r for r in before if r.plan in wanted}
            on_progress(len(self.results))
            missing = [plan for plan in self.plans if plan not in self.results]
            try:
                for some in run(self.programs, missing, self._jobs) if missing else ():
                    self.results |= {result.plan: result for result in some}
                    if known is not None:
                        known.add(some)
                    on_progress(len(some))
            except KeyboardInterrupt:
                self.interrupted = True
                return
        self.finished = True
