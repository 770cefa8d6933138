"""
The search for the layouts of a whole program. It builds the graph of choices, solves it
and annotates the program with the solution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from time import perf_counter
from typing import Any, Literal, get_args

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.planning.costs.cost_model import CostModel
from distir.planning.graph.annotate import annotate
from distir.planning.graph.strategies import LayoutStrategy
from distir.planning.graph.written_plan import WrittenPlan
from distir.planning.layouts.builder import GraphBuilder, LayoutGraph
from distir.planning.layouts.building import Before
from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.layouts.flow import flow_of
from distir.planning.layouts.memory import (
    LimitedProblem,
    Peak,
    least_peak_of,
    peak_of,
    with_memory,
)
from distir.planning.layouts.reshards import (
    LayoutNode,
    chosen_plan,
)
from distir.planning.layouts.sends import StagesOfOps
from distir.solver import InfeasibleError, Problem, Solution, solution_of
from distir.solver.clock import Clock, TimeIsOver
from distir.solver.flow import Segments
from distir.solver.solve import Level

Solver = Literal["auto", "highs", "cbc"]
SOLVERS: tuple[Solver, ...] = ("auto", "highs", "cbc")

LEVELS: tuple[Level, ...] = get_args(Level)

_SHARES = (1, 0.97, 0.9, 0.8, 0.65, 0.5, 0.25, 0.125, 0)
"""
The fractions of the possible memory savings of later mesh axes that the choice of
earlier axes assumes. They are tried in this order until layouts fit.
"""


@dataclass(frozen=True)
class Limits:
    """
    The limits of a layout search.

    - `memory`: bytes per device; None for no limit;
    - `solver`: `highs` or `cbc` for an integer program, or `auto` for the method that
      suits the problem;
    - `gap`: the allowed cost above the optimum, as a fraction;
    - `seconds`: the time limit of solving; None for no limit;
    - `together`: the largest number of alternatives of all ops with which the mesh axes
      are chosen together; with more, one after the other;
    - `release`: whether the gap applies to all plans, not only to plans in which
      repeated calls share their choices. The program is then solved a second time
      without sharing, if there is time;
    - `level`: `O3` solves the whole program at once; `O2` solves it in segments between
      critical nodes, one after the other (`distir.solver.segments`);
    - `cutoff`: the highest sum of the seconds of compute and communication that is of
      interest. If all layouts are slower, the search stops early and does not compute
      how much memory would suffice.

    Raises DistIRError if `memory`, `gap` or `seconds` is negative.
    """

    memory: float | None = None
    solver: Solver = "auto"
    gap: float = 0.0
    seconds: float | None = None
    level: Level = "O3"
    together: int = 12_000
    release: bool = False
    cutoff: float = inf

    def __post_init__(self) -> None:
        for what, value in (
            ("the memory", self.memory),
            ("the gap", self.gap),
            ("the time limit", self.seconds),
        ):
            if value is not None and not value >= 0:
                raise DistIRError(
                    f"search-sharding: {what} is {value:g}; give a number from 0 on"
                )


@dataclass(frozen=True)
class NoLayouts:
    """
    The result of a search that found no layouts, with the reason. `slow` is True if all
    layouts are slower than `Limits.cutoff`.
    """

    reason: str
    slow: bool = False


@dataclass(frozen=True)
class LayoutResult:
    """
    The result of a layout search.

    - `objective`: the cost of all ops and communication, in the `unit` of the cost
      model (seconds, as the simulator counts them);
    - `bound`: a lower bound of the cost of every choice that was considered;
    - `gap`: the distance between `objective` and `bound`, as a fraction of `objective`;
    - `peak`: the peak bytes on a device;
    - `choices`, `alternatives`, `edges`: the size of the largest problem solved;
    - `tied`: whether repeated calls share their choices. The bound then holds only for
      plans that share in the same way, unless `released` is set;
    - `released`: whether plans without sharing were also considered;
    - `axis_groups`: the number of groups of mesh axes that were chosen one after the
      other. If there are several, the bound is the bound of the last group;
    - `left`: the number of axes over which nothing is split, because the time was over
      before they were chosen;
    - `level`: `O2` or `O3`, as in `Limits`; at O2 the bound is far from the optimum;
    - `method`: the name of the method that solved the problem;
    - `layouts`: the chosen layouts, for `apply_layouts`;
    - `sends`: whether the cost includes the sends between the stages of a pipeline;
    - `by_segments`: the result of level O2, if the search at level O3 started from it.
    """

    objective: float
    bound: float
    gap: float
    peak: float
    choices: int
    alternatives: int
    edges: int
    tied: bool
    released: bool
    axis_groups: int
    method: str
    layouts: ChosenLayouts
    level: Level
    left: int = 0
    unit: str = "s"
    sends: bool = False
    by_segments: LayoutResult | None = None

    def with_proof(self, bound: float, peak: float) -> LayoutResult:
        """
        Returns the same result with `bound` and `peak` replaced, and `gap` computed
        from them. `peak` is the number of bytes at the peak in the simulator.
        """
        gap = (self.objective - bound) / self.objective if self.objective else 0.0
        return replace(self, bound=bound, gap=gap, peak=peak)

    def __str__(self) -> str:
        proof = "without a bound"
        if self.bound > 0 or not self.objective:
            above = self.objective / self.bound - 1 if self.objective else 0.0
            proof = f"at most {100 * above:.3g} % above the best"
        level = ", level O2" if self.level == "O2" else ""
        shared = ", repeated calls share their choices" if self.tied else ""
        if self.released:
            shared += " though they need not" if self.tied else ", nothing is shared"
        groups = f", axes in {self.axis_groups} groups" if self.axis_groups > 1 else ""
        if self.left:
            groups += f", {self.left} of the axes were not chosen any more"
        cost = (
            "work, communication and sends" if self.sends else "work and communication"
        )
        return (
            f"{self.objective:.6g} {self.unit} of {cost}, {proof}, "
            f"in {self.peak:.6g} bytes "
            f"({self.choices} choices with "
            f"{self.alternatives} alternatives and {self.edges} edges{shared}{groups}{level})"
        )


def search_sharding(
    module: ModuleOp,
    costs: CostModel,
    limits: Limits | None = None,
    **options: Any,
) -> LayoutResult:
    """
    Searches layouts with `search_layouts`, to which the `options` are passed on, and
    returns the result. Raises DistIRError if the search finds no layouts.
    """
    found = search_layouts(module, costs, limits, **options)
    if isinstance(found, NoLayouts):
        raise DistIRError(found.reason)
    return found


def search_layouts(
    module: ModuleOp,
    costs: CostModel,
    limits: Limits | None = None,
    *,
    tie_layers: bool | None = None,
    joint: bool | None = None,
    clock: Clock | None = None,
    stages: StagesOfOps | None = None,
) -> LayoutResult | NoLayouts:
    """
    Annotates a sequential program with the layouts of the least cost on the mesh of
    `costs`, for `partition`. If the first mesh axis is the micro-batch axis, the
    layouts on all other axes apply to one micro-batch, and the costs cover all
    micro-batches together.

    - `tie_layers`: whether repeated calls share their choices; if None, they do in
      programs with more than `MAX_OPS` ops;
    - `joint`: whether the mesh axes are chosen together, else one after the other,
      outermost first; if None, `limits.together` decides;
    - `stages`: the pipeline stages of the ops, if known; the cost then includes the
      sends between stages;
    - `clock`: the time limit of the whole search; when the clock stops, the best
      layouts so far are taken. With a limit, axes are first chosen one after the other,
      which is much faster.

    Returns a NoLayouts with the reason if no layouts fit into memory or all are too
    slow. Raises DistIRError if requests are invalid, and TimeIsOver if nothing was
    found in time.
    """
    limits = limits or Limits()
    start = perf_counter()
    graph = LayoutGraph.of(module, costs, tie_layers, clock, stages)
    builder, first = graph.builder, graph.first
    axes, known = len(costs.mesh.axes), first.axes if first else 0
    if joint is None:
        joint = builder.alternatives_of_all() <= limits.together
    one_by_one = list(range(known + 1, axes + 1)) or [axes]
    groups = [axes] if joint else one_by_one
    quick = None
    if clock is not None and clock.limit < inf and groups != one_by_one:
        quick = _quick(_AxisGroups(builder, limits, first, clock=clock), one_by_one)
    search, failure = _AxisGroups(builder, limits, first, clock=clock), None
    try:
        failure = search.run_groups(groups)
    except TimeIsOver:
        if quick is None and not search.steps:
            raise
    if (
        failure is not None
        and not quick
        and not (builder.tie_layers and limits.release)
    ):
        return failure
    if quick is not None:
        search, failure = _better(search, quick), None
    if (
        builder.tie_layers
        and limits.release
        and search.may_release(perf_counter() - start)
    ):
        released = _released(search, groups, failure)
        if isinstance(released, NoLayouts):
            return released
        search = released
    elif failure is not None:
        return failure
    chosen = search.chosen()
    annotate(module, chosen.on(module, costs.mesh))
    return search.found(ChosenLayouts((*graph.steps, chosen), search.limited))


def _quick(search: _AxisGroups, groups: Sequence[int]) -> _AxisGroups | None:
    """
    Runs `search` for `groups` of axes and returns it, even if the time was over after
    some of the groups. Returns None if no group was completed or no layouts fit into
    memory.
    """
    try:
        if search.run_groups(groups) is not None:
            return None  # memory did not suffice like that
    except TimeIsOver:
        pass
    return search if search.steps else None


def _better(search: _AxisGroups, quick: _AxisGroups) -> _AxisGroups:
    """
    Returns the search with the cheaper solution. `quick` is returned only if it chose
    all axes, or if `search` completed no group; its bound is then replaced by the bound
    of `search`.
    """
    if not search.steps:
        return quick
    if search.solution.objective <= quick.solution.objective or quick.left:
        return search
    bound = min(search.solution.bound, quick.solution.objective)
    quick.solution = replace(quick.solution, bound=bound)
    return quick


def _released(
    tied: _AxisGroups, groups: Sequence[int], failure: NoLayouts | None
) -> _AxisGroups | NoLayouts:
    """
    Solves the problem again without sharing of choices between repeated calls. Returns
    the search with the cheaper solution: the new one or `tied`, the search with
    sharing. If only one search found layouts, returns that search. If neither did,
    returns the reason; `failure` is the reason of `tied`, or None if `tied` found
    layouts.
    """
    builder, limits = tied.builder, tied.limits
    builder.tie_layers = False
    search = _AxisGroups(builder, limits, tied.first, tied.solving, tied.clock)
    search.is_released = True
    try:
        problem = search.run_groups(groups)
    except TimeIsOver:
        return tied if failure is None else failure
    if problem is not None:
        return tied if failure is None else problem
    if failure is None and tied.solution.objective < search.solution.objective:
        bound = min(search.solution.bound, tied.solution.objective)
        tied.solution = replace(tied.solution, bound=bound)
        tied.solving = search.solving
        tied.is_released = True
        return tied
    return search


class _AxisGroups:
    """A layout search that chooses groups of mesh axes one after the other."""

    def __init__(
        self,
        builder: GraphBuilder,
        limits: Limits,
        first: Before | None = None,
        solving: float = 0.0,
        clock: Clock | None = None,
    ):
        self.clock = clock
        self.builder = builder
        self.costs = builder.cost_model
        self.tied = builder.tie_layers
        self.is_released = False
        self.limits = limits
        self.first = self.before = first
        self.solving = solving
        self.steps: list[int] = []
        """The number of axes chosen so far, after each group that was completed."""
        self.limited = False
        self.segments: Segments | None = None
        self.by_segments: tuple[float, WrittenPlan] | None = None
        """
        The cost and the layouts of the solution by segments of the last group, from
        which its final solution started.
        """

    def may_release(self, seconds: float) -> bool:
        """
        Whether enough time is left to solve again without sharing. The estimate is
        `seconds`, the time with sharing, multiplied by the average number of ops or
        values that share one choice.
        """
        left = inf if self.clock is None else self.clock.left
        if self.limits.seconds is not None:
            left = min(left, self.limits.seconds - self.solving)
        nodes = self.builder.graph.nodes
        times = sum(node.count for node in nodes) / max(len(nodes), 1)
        return times * seconds <= left

    def run_groups(self, groups: Sequence[int]) -> NoLayouts | None:
        """
        Chooses layouts for groups of mesh axes in order. `groups` holds the number of
        axes chosen after each group.

        Layouts that exceed the memory after one group may fit once later axes split
        values further. The first attempt assumes that later axes divide all memory by
        their sizes. If the last axes then find nothing that fits, further attempts
        assume less. Returns None on success, else the reason of the failure. Raises
        TimeIsOver when the clock stops; `steps` then lists the completed groups.
        """
        sizes = [size for _, size in self.builder.mesh.axes]
        rest = [prod(sizes[axes:]) for axes in groups]
        failure = None
        for share in _SHARES:
            self.before, axes = self.first, 0
            self.steps, self.limited = [], False
            problem = None
            for i, (axes, most) in enumerate(zip(groups, rest, strict=True)):
                # A group of axes leaves time for those after it.
                part = self.clock and self.clock.part(1 / (len(groups) - i))
                problem = self.run(axes, max(1.0, share * most), part)
                if problem is not None:
                    break
            if problem is None:
                return None
            # A failure at the last axes says more than one at the first.
            is_last = axes == len(sizes)
            failure = problem if is_last or failure is None else failure
            if problem.slow or not is_last or share * rest[0] <= 1:
                break
            if self.clock is not None and self.clock.stopped:
                break
        return failure

    def run(
        self, axes: int, splits: float, clock: Clock | None = None
    ) -> NoLayouts | None:
        """
        Chooses layouts for the first `axes` axes with `splits` times the memory of a
        device. Returns None on success, or the reason if no layouts fit or all are too
        slow.
        """
        builder = self.builder
        body = builder.build(axes, self.before)
        limit = inf if self.limits.memory is None else splits * self.limits.memory
        if self.limits.cutoff < inf and limit < inf:
            least = least_peak_of(builder, body)
            if least.bytes > limit:
                return _never_fits(least, limit, splits)
        self.segments = None
        if self.limits.level == "O2":
            self.segments = flow_of(builder, body).segments()
        problem = builder.graph.problem()
        solution = self._solve(problem, clock, is_binding=False)
        if isinstance(solution, InfeasibleError):
            raise solution
        if (slow := self._too_slow(solution, axes)) is not None:
            return slow
        chosen = self._chosen(solution.choice)
        peak = peak_of(builder, body, chosen)
        if peak.bytes > limit:
            self.limited = True
            limited = with_memory(builder, body, limit)
            problem = limited.problem
            # At O3, too, prices for memory start from the solution by segments.
            self.segments = self.segments or flow_of(builder, body).segments()
            solution = self._solve(problem, clock, is_binding=True)
            if isinstance(solution, InfeasibleError):
                return _too_small(solution, limited, limit, splits, peak)
            if (slow := self._too_slow(solution, axes)) is not None:
                return slow
            chosen = self._chosen(solution.choice)
            peak = peak_of(builder, body, chosen)
        # Assigned together, in case the time is over before.
        self.problem, self.solution, self.peak = problem, solution, peak
        self.by_segments = None
        if (first := solution.by_segments) is not None:
            plan = chosen_plan(body, self._chosen(first))
            self.by_segments = problem.cost(first), WrittenPlan.of(plan)
        self.before = Before(chosen_plan(body, chosen), axes)
        self.steps.append(axes)
        return None

    def _too_slow(self, solution: Solution, axes: int) -> NoLayouts | None:
        """
        Returns a reason if no layouts on all axes can be fast enough, judged by the
        bound of `solution` for the first `axes` axes. The other axes are assumed to
        divide all costs. Returns None if fast layouts are possible.
        """
        others = prod(size for _, size in self.builder.mesh.axes[axes:])
        least = solution.bound / self.costs.scale / others
        if least <= self.limits.cutoff:
            return None
        return NoLayouts(
            f"search-sharding: work and communication take {least:.4g} s or more with any "
            f"layouts that were weighed, and {self.limits.cutoff:.4g} s would be too long",
            slow=True,
        )

    def _solve(
        self, problem: Problem, clock: Clock | None, *, is_binding: bool
    ) -> Solution | InfeasibleError:
        start, scale = perf_counter(), self.costs.scale
        by_program = self.limits.solver != "auto"
        seconds = self.limits.seconds
        left = None if seconds is None else max(seconds - self.solving, 0.0)
        solution = solution_of(
            Problem(
                [costs * scale for costs in problem.costs],
                {pair: matrix * scale for pair, matrix in problem.edges.items()},
                problem.memory,
            ),
            method="integer-program" if by_program else "auto",
            solver=self.limits.solver if self.limits.solver != "auto" else "highs",
            time_limit=left,
            clock=clock,
            gap=self.limits.gap,
            segments=self.segments,
            level=self.limits.level,
            is_binding=is_binding,
        )
        self.solving += perf_counter() - start
        return solution

    def _chosen(self, choice: Sequence[int]) -> Mapping[LayoutNode, LayoutStrategy]:
        """
        Returns the chosen strategy of each node of the graph. `choice` may have more
        entries than the graph has nodes, because a problem with a memory limit has
        additional nodes after the nodes of the graph.
        """
        graph = self.builder.graph
        return graph.chosen(choice[: len(graph.nodes)])

    @property
    def left(self) -> int:
        """The number of axes that have not been chosen."""
        return len(self.builder.mesh.axes) - self.steps[-1]

    def chosen(self) -> WrittenPlan:
        """Returns the layouts after the last completed group of axes."""
        assert self.before is not None
        return WrittenPlan.of(self.before.plan)

    def found(self, layouts: ChosenLayouts) -> LayoutResult:
        """
        Returns the result after the last completed group of axes. `layouts` are the
        chosen layouts.
        """
        scale = self.costs.scale
        found = LayoutResult(
            self.solution.objective / scale,
            self.solution.bound / scale,
            self.solution.gap,
            self.peak.bytes,
            len(self.problem.costs),
            sum(len(costs) for costs in self.problem.costs),
            len(self.problem.edges),
            self.tied,
            self.is_released,
            len(self.steps),
            self.solution.method,
            layouts,
            self.limits.level,
            self.left,
            self.costs.unit,
        )
        # O2 would search one group of axes after the other, and without sharing too.
        if self.by_segments is None or len(self.steps) > 1 or self.is_released:
            return found
        objective, plan = self.by_segments
        layouts = replace(layouts, steps=(*layouts.steps[:-1], plan))
        first = replace(found, objective=objective, level="O2", layouts=layouts)
        return replace(found, by_segments=first)


def _never_fits(least: Peak, limit: float, splits: float) -> NoLayouts:
    """
    Returns a reason that names the values that take the most memory even in their
    smallest layouts. `limit` is the memory of a device multiplied by `splits`.
    """
    largest = ", ".join(name for name, _ in least.held[:5])
    return NoLayouts(
        f"search-sharding: no layouts fit into {limit / splits:.6g} bytes per device: the "
        f"fullest moment takes {least.bytes / splits:.6g} or more. Most is taken by "
        f"{largest}. Use more devices, a smaller batch, or `activation-checkpoint` before "
        f"the search"
    )


def _too_small(
    error: InfeasibleError,
    limited: LimitedProblem,
    limit: float,
    splits: float,
    fastest: Peak,
) -> NoLayouts:
    """
    Returns a reason that names the values that take the most memory, and the bytes that
    would suffice if the solver knows them. `limit` is the memory of a device multiplied
    by `splits`.
    """
    device = limit / splits
    largest = list(dict.fromkeys(limited.what[node] for node in error.nodes))[:5]
    if not largest:
        largest = [name for name, _ in fastest.held[:5]]
    text = (
        f"search-sharding: no layouts fit into {device:.6g} bytes per device"
        if error.proven
        else f"search-sharding: no layouts were found in the time given that fit into "
        f"{device:.6g} bytes per device"
    )
    if error.peak is not None:
        assert limited.problem.memory is not None
        constants = limit - limited.problem.memory.limit
        text += f"; {(error.peak + constants) / splits:.6g} bytes would do"
        if error.least is not None and error.least < error.peak:
            least = (error.least + constants) / splits
            text += f", and less than {least:.6g} cannot"
    if largest:
        text += f". Most is taken by {', '.join(largest)}"
    return NoLayouts(
        f"{text}. Use more devices, a smaller batch, or `activation-checkpoint` before the "
        f"search"
    )
