"""
Finds the division into stages with the least communication, or with the best balance,
by the method that suits the problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from distir.errors import DistIRError, one_of
from distir.solver.stages.in_order import InOrder
from distir.solver.stages.integer_program import free_choices, solve
from distir.solver.stages.problem import StageDivision, StageProblem

METHODS = ("auto", "in-order", "integer-program")
"""
The methods. `in-order` divides the nodes in the order of their indices, by dynamic
programming. `integer-program` considers all divisions. `auto` uses the first, and also
the second if other orders are possible and the graph is not too large.
"""

MOST_CHOICES = 4000
"""
The largest number of open binary choices for which `auto` tries an integer program.
"""

MOST_NODES = 2000
"""The largest number of nodes for which `auto` considers an integer program."""

TIME_LIMIT = 10.0


def cheapest(
    problem: StageProblem,
    cap: float,
    method: str = "auto",
    time_limit: float = TIME_LIMIT,
    known: StageDivision | None = None,
) -> StageDivision:
    """
    Returns the division with the least communication in which each stage has at most
    `cap` seconds of work. After `time_limit` seconds, returns the best division found,
    with a bound. The result is no worse than `known`, if the cap allows that division.
    Raises DistIRError if there is no division or none was found.
    """
    search = _Dividing(problem, method, time_limit)
    start: Sequence[int] | None = None
    if search.tries_order:
        start = InOrder(problem).cheapest(cap)
    known_is_better = known is not None and (
        start is None or known.communication < problem.communication(start)
    )
    if known is not None and known_is_better and problem.allows(known.stages, cap):
        start, search.found_by = known.stages, known.method
    found = search.finish(start, cap, balanced=False)
    if found is None:
        raise DistIRError(_reason(problem, cap, search.is_exact))
    return found


def balance(
    problem: StageProblem, method: str = "auto", time_limit: float = TIME_LIMIT
) -> StageDivision:
    """
    Returns a division whose busiest stage has as little work as possible, found by
    `balance_of`. Raises DistIRError if there is no division or none was found.
    """
    found = balance_of(problem, method, time_limit)
    if isinstance(found, str):
        raise DistIRError(found)
    return found


def balance_of(
    problem: StageProblem, method: str = "auto", time_limit: float = TIME_LIMIT
) -> StageDivision | str:
    """
    Returns a division whose busiest stage has as little work as possible. Among such
    divisions in the order of the nodes' indices, takes one with the least
    communication. Returns the reason, as text, if there is no division or none was
    found in time.
    """
    search = _Dividing(problem, method, time_limit)
    order = InOrder(problem)
    cap = order.least_cap()
    in_order = order.cheapest(cap) if search.tries_order and cap is not None else None
    most = float(sum(problem.loads)) if cap is None else cap
    found = search.finish(in_order, most, balanced=True)
    return _reason(problem, None, search.is_exact) if found is None else found


class _Dividing:
    """One search for a division into stages, which tries the methods in turn."""

    def __init__(self, problem: StageProblem, method: str, time_limit: float):
        one_of("method", method, METHODS, "stages")
        self.problem = problem
        self.method = method
        self.start = monotonic()
        self.end = self.start + time_limit
        self.is_exact = False
        """Whether all divisions were considered."""
        self.found_by = "in-order"
        """The method that found the division to start from."""

    @property
    def tries_order(self) -> bool:
        """Whether divisions in the order of the nodes' indices are tried."""
        return self.method != "integer-program"

    def finish(
        self, start: Sequence[int] | None, cap: float, *, balanced: bool
    ) -> StageDivision | None:
        """
        Returns the better of `start` and the result of the integer program, or None if
        there is no division. With `balanced`, the better division has the lower load of
        the busiest stage, otherwise less communication. No load may exceed `cap`.
        """
        problem = self.problem
        value = problem.bottleneck if balanced else problem.communication
        bound = max(sum(problem.loads) / problem.stages, *problem.loads)
        bound = bound if balanced else 0.0
        stages, method = start, self.found_by
        if problem.has_one_order and start is not None:
            self.is_exact, bound = True, value(start)
        elif self._tries_program(cap):
            left = self.end - monotonic()
            answer = solve(problem, cap, start, balanced=balanced, time_limit=left)
            self.is_exact = answer.stages is not None or answer.bound == float("inf")
            if answer.stages is not None and (
                stages is None or value(answer.stages) < value(stages)
            ):
                stages, method = answer.stages, "integer-program"
            bound = max(bound, answer.bound)
        if stages is None:
            return None
        objective = value(stages)
        return StageDivision(
            stages=list(stages),
            communication=problem.communication(stages),
            bottleneck=problem.bottleneck(stages),
            objective=objective,
            bound=min(bound, objective),
            method=method,
            seconds=monotonic() - self.start,
        )

    def _tries_program(self, cap: float) -> bool:
        if self.method != "auto":
            return self.method == "integer-program"
        if self.problem.has_one_order or self.problem.nodes > MOST_NODES:
            return False
        return free_choices(self.problem, cap) <= MOST_CHOICES


def _reason(problem: StageProblem, cap: float | None, is_exact: bool) -> str:
    """
    Returns a message that explains why there is no division whose loads are at most
    `cap`.
    """
    limits: list[str] = []
    if cap is not None:
        limits.append(f"{cap:.6g} s of work a stage")
    if problem.memory is not None:
        limits.append(f"{problem.memory.limit:.6g} bytes of memory a stage")
    heaviest = max(range(problem.nodes), key=lambda i: problem.loads[i])
    there_is = "there is no division" if is_exact else "no division was found"
    return (
        f"stages: {there_is} into {problem.stages} stages of at most "
        f"{' and '.join(limits) or 'any work'}; the work is "
        f"{sum(problem.loads):.6g} s in all, {problem.loads[heaviest]:.6g} s of it in "
        f"one op. Allow more, or choose another number of stages"
    )
