"""The plans simulated so far on the page, and the search for more plans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.interpreters.simulator import Simulation
from distir.interpreters.simulator.profiles.files import ProfileChoice
from distir.planning.distribution.context import context_degrees
from distir.planning.distribution.experts import expert_degrees
from distir.planning.distribution.options import DistributionOptions
from distir.planning.grid.evaluate import Evaluator
from distir.planning.grid.results import pareto_front
from distir.planning.layouts.fitted_plan import Step
from distir.planning.plans.plan import GridPlan, Space
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Simulated
from distir.program import Program, batch_size, entry_function
from distir.program.entries import chosen_entry
from distir.tools.arguments.distribution import distribution_options
from distir.tools.explore.jobs import GivenUp, Message, Steps
from distir.tools.explore.models import OFF, ON
from distir.tools.explore.state import State, plan_options
from distir.tools.reports.pareto_plot import Mark, time_plot
from distir.tools.reports.reporting import bytes_text, seconds_text

_PROBLEMS = 8
"""The number of pairs of program and cluster whose plans are kept."""

_PLANS = 2000
"""The most plans of one such pair that are kept."""

_LISTED = 12
"""The most rows in the list of the front."""

_BETWEEN = 0.4
"""The least seconds between two drawings of the front during a search."""

_MICRO_BATCHES = (8,)
"""The numbers of micro-batches that the search tries besides the present one."""


@dataclass(frozen=True)
class SeenPlan:
    """
    A simulated plan: its settings as `query` and in words, and its `result`. A result
    of a search is an estimate until the page shows the plan.
    """

    query: str
    words: str
    result: Simulated
    is_estimate: bool


class PlansSeen:
    """The plans simulated so far, for each pair of program and cluster."""

    def __init__(self) -> None:
        self._problems: OrderedDict[object, OrderedDict[str, SeenPlan]] = OrderedDict()

    def _of(self, state: State) -> OrderedDict[str, SeenPlan]:
        found = self._problems.setdefault(state.problem, OrderedDict())
        self._problems.move_to_end(state.problem)
        if len(self._problems) > _PROBLEMS:
            self._problems.popitem(last=False)
        return found

    def add(self, state: State, module: ModuleOp, result: Simulation) -> None:
        """
        Adds `result`, the simulated step for the settings `state` of the program
        `module`.
        """
        entry = entry_function(chosen_entry(module, state.setup.entry))
        options = distribution_options(state.arguments())
        known = {own.name for own in fields(GridPlan)}
        same = {n: v for n, v in vars(options).items() if n in known}
        # Only ties between results depend on their plans.
        same |= {"chunks": options.chunks or 0, "stages": "".join(options.stages)}
        plan = GridPlan(batch_size(entry) or 1, **same)
        self._put(state, Simulated(plan, *Step.of(result)), is_estimate=False)

    def add_estimate(self, state: State, result: Simulated) -> None:
        """
        Adds the result of a search for the settings `state`, unless the simulated step
        of these settings is already known.
        """
        known = self._of(state).get(state.query)
        if known is None or known.is_estimate:
            self._put(state, result, is_estimate=True)

    def _put(self, state: State, result: Simulated, is_estimate: bool) -> None:
        plans = self._of(state)
        plans[state.query] = SeenPlan(state.query, words_of(state), result, is_estimate)
        if len(plans) > _PLANS:
            plans.popitem(last=False)

    def shown(self, state: State) -> Message:
        """
        Returns the plans for the program and the cluster in `state`: a plot as SVG
        text, and the rows of the Pareto front.
        """
        plans = list(self._of(state).values())
        front = pareto_front(plan.result for plan in plans)
        marks = [_mark(plan, plan.query == state.query) for plan in plans]
        by_result = {id(plan.result): plan for plan in plans}
        rows = [_row(by_result[id(result)]) for result in front[:_LISTED]]
        return {
            "svg": time_plot(marks, front),
            "rows": rows,
            "plans": len(plans),
            "on_front": len(front),
        }


def words_of(state: State) -> str:
    """Returns the plan in the settings `state` as the options of a command."""
    words: list[str] = []
    for name, values in state.plan:
        flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        if values == (ON,):
            words.append(flag)
        elif values == (OFF,):
            words.append(flag.replace("--", "--no-", 1))
        else:
            words.append(f"{flag} {' '.join(values)}")
    return " ".join(words) or "one device"


def _mark(plan: SeenPlan, is_shown: bool) -> Mark:
    result = plan.result
    title = (
        f"{plan.words}: {seconds_text(result.step_time_s)}, "
        f"{bytes_text(result.peak_memory_bytes)}"
    )
    looks = ["estimate"] if plan.is_estimate else []
    looks += ["shown"] if is_shown else []
    return Mark(result, title, f"?{plan.query}", " ".join(looks))


def _row(plan: SeenPlan) -> list[str]:
    result = plan.result
    return [
        plan.words,
        plan.query,
        seconds_text(result.step_time_s),
        bytes_text(result.peak_memory_bytes),
        "estimate" if plan.is_estimate else "",
    ]


def search_steps(
    state: State, module: ModuleOp, cluster: ClusterOp, seen: PlansSeen
) -> Steps:
    """
    Simulates a grid of plans around the settings `state` and adds them to `seen`.
    Yields the progress. If a more urgent job interrupts a plan, the search begins this
    plan again later.
    """
    devices = state.devices or cluster.size
    plans = _space(state, module, devices).known()
    evaluator: Evaluator | None = None
    last = 0.0
    for done, plan in enumerate(plans, start=1):
        result = None
        while result is None:
            try:
                if evaluator is None:
                    names = ProfileChoice.of(state.setup.profile, cluster).names
                    programs = Programs.of([module], cluster, names)
                    evaluator = Evaluator(programs)
                result = evaluator.evaluate(plan)
            except GivenUp:
                # What plans share may be half made.
                evaluator = None
                yield {}
        if isinstance(result, Simulated):
            seen.add_estimate(_state_of_plan(state, plan), result)
        if monotonic() - last > _BETWEEN or done == len(plans):
            last = monotonic()
            yield {"done": done, "total": len(plans), "front": seen.shown(state)}
        else:
            yield {}


def _space(state: State, module: ModuleOp, devices: int) -> Space:
    """
    Returns the grid of plans around the settings `state`: all degrees, and common ZeRO
    stages, recomputation policies and micro-batches. All other settings stay.
    """
    trains = Program(module).trains
    batch = batch_size(entry_function(module)) or 1
    options = distribution_options(state.arguments())
    more: dict[str, Any] = {}
    if trains:
        more["zero"] = sorted({0, 1, 3, options.zero})
        more["checkpoint"] = list(dict.fromkeys(["none", "full", options.checkpoint]))
    if options.schedule:
        more["schedules"] = [options.schedule]
    return Space(
        [batch],
        trains,
        devices,
        micro_batches=sorted({*_MICRO_BATCHES, options.k} - {1}),
        c=context_degrees([module], devices),
        e=expert_degrees([module], devices),
        overlap=(options.overlap,),
        buckets=options.buckets,
        **more,
    )


def _state_of_plan(state: State, plan: GridPlan) -> State:
    """Returns `state` with the settings of a plan of the grid."""
    options = plan.options()
    default = DistributionOptions()
    found: list[tuple[str, tuple[str, ...]]] = []
    for name in plan_options():
        value = getattr(options, name)
        if value != getattr(default, name):
            found.append((name, _texts(value)))
    return State(state.setup, state.choice, state.cluster, state.devices, tuple(found))


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (ON if value else OFF,)
    if isinstance(value, tuple):
        several: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return tuple(map(str, several))
    return (str(value),)
