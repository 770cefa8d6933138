"""Solves a problem by the method that suits its size after the reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np

from distir.errors import DistIRError, one_of
from distir.solver.clock import Clock
from distir.solver.elimination import EliminationOrder, eliminate, plan
from distir.solver.first_choice import first_choice
from distir.solver.flow import Segments
from distir.solver.graph import CostGraph, replay
from distir.solver.memory.lagrangian import Lagrangian
from distir.solver.memory.relaxed import WORK, Optimum, fits, near_optimum, optimum
from distir.solver.memory.smallest_peak import SmallestPeak, smallest_peak
from distir.solver.problem import Costs, Problem, Solution
from distir.solver.programs.integer_program import (
    MANY_COLUMNS,
    SolverName,
    decided,
    solve_integer_program,
)
from distir.solver.reductions import NoAlternative, Reductions, reduce
from distir.solver.result import ROUNDING, InfeasibleError, SolverResult, trivial_bound
from distir.solver.segments import solve_by_segments

Level = Literal["O2", "O3"]
Method = Literal["auto", "elimination", "integer-program", "lagrangian"]
METHODS: tuple[str, ...] = get_args(Method)
SOLVERS: tuple[str, ...] = get_args(SolverName)

# An integer program with so many columns takes a second.
FEW_COLUMNS = 20_000

# The gap at which the search for prices of memory ends when segments decide: they find
# good choices, not the best ones.
SEGMENTS_GAP = 5e-3

# At given prices of memory, a choice may be this multiple of the allowed gap from the
# best.
PASS_GAP = 3.0

# The most additions and comparisons of an elimination that is worth repeating for many
# prices of memory (a tenth of a second). Above this, dual ascent is faster: it
# continues from the last prices.
PASS_WORK = 3e7

# The reductions, and the search for the smallest peak if nothing fits so far, get at
# least this many seconds, even if the time is over.
PATIENCE = 1.0


def solve(problem: Problem, **options: Any) -> Solution:
    """
    Solves a problem with `solution_of`, to which the `options` are passed on, and
    returns the solution. Raises InfeasibleError if there is no choice.
    """
    found = solution_of(problem, **options)
    if isinstance(found, InfeasibleError):
        raise found
    return found


def solution_of(
    problem: Problem,
    *,
    method: Method = "auto",
    solver: SolverName = "highs",
    time_limit: float | None = None,
    clock: Clock | None = None,
    gap: float = 0.0,
    seed_choice: Sequence[int] | None = None,
    segments: Segments | None = None,
    level: Level = "O3",
    is_binding: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Solution | InfeasibleError:
    """
    Returns the best choice that is found, with its bound, or the reason why there is no
    choice. The search ends at `time_limit` seconds, when the gap to the bound is at
    most `gap` (a fraction of the objective), or at an interruption (SIGINT). A first
    choice is made even if the time is over. Raises DistIRError for unknown methods and
    solvers.

    - `method`: `elimination` is exact and ignores memory; `integer-program` is exact,
      by `solver`; `lagrangian` leaves a small gap under a memory limit; `auto` chooses
      by size, and leaves a gap if an integer program would take minutes, with or
      without a memory limit;
    - `clock`: a further time limit; its owner handles interruptions;
    - `seed_choice`: a choice that the result must not be worse than; ignored if it does
      not fit into memory;
    - `level`: at O2 the `segments` are decided one after another instead of all nodes
      together, so the bound is far from the optimum; if segments find no choice, all
      nodes are solved together. At O3 the Lagrangian continues from the choice of O2,
      and the result holds that choice too;
    - `is_binding`: whether the best choice without a memory limit is known to exceed
      the limit, so that it is not searched again;
    - `progress`: a function that is called with lines of text.
    """
    one_of("method", method, METHODS)
    one_of("solver", solver, SOLVERS)
    own = Clock(time_limit)
    if clock is not None:
        own = clock.part(1.0, own.limit)
    with own:
        search = _Solving(
            problem, solver, gap, own, progress or _silent, segments, level, is_binding
        )
        return search.run(method, seed_choice)


class _Solving:
    def __init__(
        self,
        problem: Problem,
        solver: SolverName,
        gap: float,
        clock: Clock,
        progress: Callable[[str], None],
        segments: Segments | None,
        level: Level,
        is_binding: bool,
    ):
        self.problem, self.gap, self.clock, self.progress = (
            problem,
            gap,
            clock,
            progress,
        )
        self.solver: SolverName = solver
        self.graph = CostGraph.of(problem)
        self.peak: SmallestPeak | None = None
        self.by_segments: Optimum | None = None
        if segments is not None:
            cover = segments.covering(problem)
            self.by_segments = partial(solve_by_segments, segments=cover)
        self.level = level
        self.is_binding = is_binding
        self.first: SolverResult | None = None

    def run(
        self, method: Method, seed: Sequence[int] | None
    ) -> Solution | InfeasibleError:
        problem, graph = self.problem, self.graph
        try:
            Reductions(graph, Clock(max(PATIENCE, self.clock.left))).run()
        except NoAlternative as error:
            return InfeasibleError(
                f"no alternative of node {error.node} is possible", (error.node,)
            )
        self.progress(
            f"{len(graph.costs)} of {len(problem.costs)} nodes are left after reductions"
        )
        name, found = self.search(method)
        if found.choice is None and not found.infeasible:
            found = found.better(SolverResult.of(graph, self.any_choice(), -math.inf))
        chosen = self.whole(found.choice)
        if seed is not None and self.fits(seed):
            chosen = (
                list(seed)
                if chosen is None
                else min(chosen, list(seed), key=problem.cost)
            )
        if chosen is None:
            return self.failure(found)
        objective = problem.cost(chosen)
        bound = settled(problem, objective, max(found.bound, trivial_bound(graph)))
        first = None if self.first is None else self.whole(self.first.choice)
        return Solution(chosen, objective, bound, name, self.clock.seconds, first)

    def whole(self, choice: Mapping[int, int] | None) -> list[int] | None:
        """
        Returns the alternatives of all nodes, computed from the alternatives of the
        remaining nodes, or None if `choice` is None.
        """
        if choice is None:
            return None
        every = replay(self.graph.steps, dict(choice))
        return [every[i] for i in range(len(self.problem.costs))]

    def fits(self, choice: Sequence[int]) -> bool:
        """Whether a choice for all nodes is possible and keeps the memory limit."""
        memory = self.problem.memory
        possible = math.isfinite(self.problem.cost(choice))
        return possible and (
            memory is None or self.problem.peak(choice) <= memory.limit
        )

    def search(self, method: Method) -> tuple[str, SolverResult]:
        """
        Returns the name of the method that was used, and its result for the remaining
        nodes.
        """
        graph = self.graph
        found = decided(graph)
        if found is not None:
            return "reductions", found
        if self.clock.stopped:
            return "first choice", SolverResult(None, math.inf, -math.inf)
        if self.by_segments is not None and self.level == "O2":
            name, found = self.segments_only(self.by_segments)
            if found.choice is not None:
                return name, found
        exact = f"integer program ({self.solver})"
        if method == "integer-program":
            return exact, self.integer_program(None)
        columns = graph.columns
        if method != "lagrangian":
            if method == "elimination" or not (self.is_binding and graph.pieces):
                found = self.elimination(method)
            if found is not None:
                return "elimination", found
            if not graph.pieces:
                free = graph.copy(memory=False)
                return "dual ascent", optimum(free, self.clock, self.gap)
            if columns <= FEW_COLUMNS:
                return exact, self.integer_program(None)
        found = self.lagrangian()
        if method == "lagrangian" or columns > MANY_COLUMNS or self.clock.stopped:
            return "lagrangian", found
        if found.proven(self.gap):
            return "lagrangian", found
        return exact, found.better(self.integer_program(found.choice))

    def segments_only(self, by_segments: Optimum) -> tuple[str, SolverResult]:
        """
        Solves segment by segment. If the result does not fit into memory, bytes of
        memory get prices, and the segments are solved again at these prices. If
        elimination would be slow, the whole graph is solved at these prices instead.
        """
        graph, clock = self.graph, self.clock
        choice = by_segments(graph.copy(memory=False), clock).choice
        if choice is not None and (graph.load(choice) <= graph.capacity).all():
            return "segments", SolverResult.of(graph, choice, -math.inf)
        if not self.is_small:
            return "dual ascent", self.by_passes().run(thorough=False)
        passes = self.by_passes()
        quick = self.priced(by_segments, passes)
        return "segments", SolverResult.of(graph, quick.best.choice, passes.bound)

    def priced(
        self, by_segments: Optimum, passes: Lagrangian, share: float = 1.0
    ) -> Lagrangian:
        """
        Finds prices for memory, and returns the search that found them. The search
        takes at most the fraction `share` of the time limit. At given prices, segments
        of the graph are decided one after another (`by_segments`). Unless elimination
        is quick, `passes` first finds prices by dual ascent, which takes less time and
        gives a lower bound.
        """
        gap, clock = max(self.gap, SEGMENTS_GAP), self.clock.part(share)
        quick = Lagrangian(self.graph, gap, clock, self.progress, by_segments)
        if not self.is_quick and passes.price({}):
            passes.climb()
            quick.go_on(passes)
        quick.run()
        return quick

    def any_choice(self) -> Mapping[int, int] | None:
        """
        Returns a choice that fits into memory, for use if the methods found none.
        Returns a good choice if quick rules find one, else any choice that fits.
        Returns None if no choice is found.
        """
        graph, clock = self.graph, self.clock
        found = first_choice(graph)
        if graph.pieces:
            quick = self.by_segments if self.level == "O2" else None
            forbidden = forbid_largest(graph, clock, quick or optimum)
            if forbidden is not None:
                of = (
                    SolverResult.of(graph, choice, -math.inf)
                    for choice in (found, forbidden)
                )
                found = min(of, key=lambda found: found.objective).choice
            elif found is None:
                self.peak = smallest_peak(graph, Clock(max(PATIENCE, clock.left)))
                if self.peak is not None and self.peak.over <= 0:
                    found = self.peak.choice
        return found

    def lagrangian(self) -> SolverResult:
        """
        Runs the Lagrangian, a search with prices for memory. If segments are given, the
        search starts from the result of the segments. If no choice that fits into
        memory is found, runs the search again from the choice with the smallest peak.
        """
        graph, clock = self.graph, self.clock
        first = self.by_passes()
        if self.by_segments is not None and self.is_small:
            quick = self.priced(self.by_segments, first, 0.4)
            self.first = quick.best
            first.go_on(quick)
        found = first.run()
        if found.choice is not None or found.infeasible or clock.stopped:
            return found
        peak = smallest_peak(graph, clock)
        if peak is None:
            return found
        if peak.least > 0:
            return SolverResult(None, math.inf, math.inf)
        if peak.over > 0:
            return found
        again = self.by_passes()
        again.best = SolverResult.of(graph, peak.choice, -math.inf)
        return found.better(again.run())

    @cached_property
    def order(self) -> EliminationOrder | None:
        """
        An order for the elimination of the nodes that are left after reductions without
        the memory limit. The order is cut short if its work exceeds `WORK`. The order
        is None if a node has no possible alternative.
        """
        free = self.graph.copy(memory=False)
        return plan(free, WORK) if reduce(free) else None

    @property
    def is_small(self) -> bool:
        """Whether elimination without regard to memory takes a few seconds at most."""
        return self.order is None or fits(self.order)

    @property
    def is_quick(self) -> bool:
        """
        Whether elimination is fast enough for many repetitions with different prices of
        memory.
        """
        return self.order is None or self.order.work <= PASS_WORK

    def by_passes(self) -> Lagrangian:
        """
        Returns the search with prices for memory (Lagrangian) for the remaining nodes.
        For given prices, the graph is solved exactly if elimination is quick, else
        approximately by dual ascent.
        """
        graph, clock = self.graph, self.clock
        if self.is_quick:
            return Lagrangian(graph, self.gap, clock, self.progress)
        near = near_optimum(graph, PASS_GAP * self.gap)
        return Lagrangian(graph, self.gap, clock, self.progress, near, is_exact=False)

    def elimination(self, method: Method) -> SolverResult | None:
        """
        Returns the optimum by elimination, or None if elimination is too slow or the
        optimum exceeds the memory limit. Raises DistIRError instead of returning None
        if `method` is `elimination`.
        """
        graph = self.graph
        free = graph.copy(memory=False)
        if graph.pieces and not reduce(free):
            return SolverResult(None, math.inf, math.inf)
        order = plan(free, WORK)
        self.order = order  # not to be found out again
        if not self.is_small:
            if method == "elimination":
                raise DistIRError(
                    f"elimination would take more than {order.work:.1e} steps on tables of "
                    f"{order.entries:.1e} entries: choose method=auto"
                )
            return None
        found = eliminate(free, order, self.clock)
        if found is None:
            return SolverResult(None, math.inf, trivial_bound(free))
        if found.choice is None:
            return found
        choice = replay(free.steps, dict(found.choice))
        if not (graph.load(choice) > graph.capacity).any():
            return SolverResult(choice, found.objective, found.bound)
        if method == "elimination":
            raise DistIRError(
                "elimination knows no memory limit, and this problem's binds: choose "
                "method=auto"
            )
        return None

    def integer_program(self, start: Mapping[int, int] | None) -> SolverResult:
        """
        Returns the result of the integer program of the remaining nodes. `start` is a
        choice to start from, or None.
        """
        return solve_integer_program(
            self.graph, self.solver, clock=self.clock, gap=self.gap, start=start
        )

    def failure(self, found: SolverResult) -> InfeasibleError:
        """
        Returns an error with the reason why there is no choice: either the memory
        limit, with the nodes that exceed it, or forbidden pairs of alternatives.
        """
        memory = self.problem.memory
        peak = self.peak
        if memory is not None and peak is None:
            peak = smallest_peak(self.graph, Clock(max(PATIENCE, self.clock.left)))
        if memory is None or peak is None:
            what = "there is no" if found.infeasible else "no possible"
            return InfeasibleError(
                f"{what} choice of alternatives was found, whatever the memory: some pairs "
                f"of alternatives have to be allowed",
                (),
                proven=found.infeasible,
            )
        chosen = self.whole(peak.choice)
        assert chosen is not None
        smallest = self.problem.peak(chosen)
        least = memory.limit + peak.least if peak.least > 0 else memory.limit
        largest = contributors(self.problem, chosen)
        proven = found.infeasible or peak.least > 0
        return InfeasibleError(
            f"no choice {'fits' if proven else 'that fits was found'} in {memory.limit:.0f} "
            f"bytes: the smallest peak found is {smallest:.0f} bytes, and none is below "
            f"{least:.0f}",
            largest,
            smallest,
            least,
            proven,
        )


def contributors(problem: Problem, choice: Sequence[int]) -> list[int]:
    """Returns the nodes that occupy memory at the peak of a choice, largest first."""
    memory = problem.memory
    assert memory is not None
    end = max(end for _, end in memory.intervals)
    change = np.zeros(end + 1)
    for usage, (start, stop), a in zip(
        memory.usages, memory.intervals, choice, strict=True
    ):
        if start < stop:
            change[start] += usage[a]
            change[stop] -= usage[a]
    moment = int(np.cumsum(change).argmax())
    live = [
        (float(memory.usages[i][choice[i]]), i)
        for i, (start, stop) in enumerate(memory.intervals)
        if start <= moment < stop
    ]
    return [i for usage, i in sorted(live, key=lambda u: (-u[0], u[1])) if usage]


def _silent(_: str) -> None:
    return None


def settled(problem: Problem, objective: float, bound: float) -> float:
    """
    Returns the bound without rounding errors. If all costs are integers, the bound is
    rounded up to an integer. If the bound differs from the objective only by rounding
    errors, the result is the objective.
    """
    slack = ROUNDING * abs(objective)
    if math.isfinite(bound) and all(
        _integral(costs) for costs in (*problem.costs, *problem.edges.values())
    ):
        bound = float(math.ceil(bound - max(slack, 1e-6)))
    return objective if bound >= objective - slack else bound


def _integral(costs: Costs) -> bool:
    return bool((np.isinf(costs) | (costs == np.floor(costs))).all())


def forbid_largest(
    graph: CostGraph, clock: Clock, optimum: Optimum
) -> Mapping[int, int] | None:
    """
    Returns a choice that fits into memory by Rhino's rule (section 4.4), or None if
    none is found in time. The rule relies on the fact that a few large tensors take
    most of the memory. It forbids the largest alternatives of the k nodes that can
    occupy the most, and solves the rest without a limit. The smallest k whose result
    fits is used. `optimum` is a function that solves a graph and removes its nodes.
    """
    sizes = {i: pieces.usage.max(axis=0) for i, pieces in graph.pieces.items()}
    largest = sorted(sizes, key=lambda i: (-float(sizes[i].max()), i))
    # Nodes that occupy the same under all alternatives are left out.
    largest = [i for i in largest if np.ptp(sizes[i])]
    best: Mapping[int, int] | None = None
    least, most = 1, len(largest)
    while least <= most and not clock.stopped:
        k = most if best is None else (least + most) // 2
        free = graph.copy(memory=False)
        for i in largest[:k]:
            whole = sizes[i] == sizes[i].max()
            free.costs[i] = np.where(whole, math.inf, free.costs[i])
        choice = optimum(free, clock).choice
        if choice is not None and not (graph.load(choice) > graph.capacity).any():
            best, most = choice, k - 1
        elif best is None:
            return None
        else:
            least = k + 1
    return best
