"""
The space of a tuning. Each of its points combines values for a schedule's knobs with a
plan from a grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

from xdsl.dialects.transform import NamedSequenceOp
from xdsl.ir import SSAValue

from distir.dialects.schedule import KnobOp, KnobValue, RequireOp
from distir.errors import DistIRError
from distir.planning.plans.plan import GridPlan
from distir.scheduling.knobs import (
    KnobChoice,
    case_number,
    knob_value,
    possible_values,
)

Chosen = tuple[tuple[str, KnobChoice], ...]
"""The values of a schedule's knobs by name, in the order of the schedule."""

DEGREES = "d, t, p"
"""
The name of the coordinate for a plan's degrees of parallelism. They are one coordinate
because their product is fixed.
"""

_TRIES = 10_000
"""
The maximal number of combinations that are drawn at random. If the schedule excludes
all of them, an error is raised.
"""


@dataclass(frozen=True)
class Point:
    """A choice of knob values (`chosen`) and of a plan for the distribution."""

    chosen: Chosen
    plan: GridPlan

    @property
    def settings(self) -> tuple[str, ...]:
        """The knob values as texts for the option `--set`."""
        return tuple(f"{name}={value}" for name, value in self.chosen)

    def __str__(self) -> str:
        plan = str(self.plan).split()
        # A knob that is an option of the plan is said once.
        return " ".join([*(s for s in self.settings if s not in plan), *plan])


def plan_values(plan: GridPlan) -> dict[str, KnobChoice]:
    """
    Returns the values of a plan by coordinate (a property that tuning can change
    alone). The degrees d, t and p are one coordinate, because their product is fixed.
    """
    return {
        "batch": plan.batch,
        DEGREES: f"{plan.d}, {plan.t}, {plan.p}",
        "k": plan.k,
        "zero": plan.zero,
        "checkpoint": plan.checkpoint,
        "schedule": plan.schedule,
        "overlap": int(plan.overlap),
    }


class TuningSpace:
    """
    All combinations of plans of a grid with values of a schedule's knobs, except the
    combinations that the schedule excludes. A knob with an `option` has the value of
    this option in the plan.

    `coordinates` are the names of properties that can change one at a time: knobs
    without an option, and properties in which the plans differ. Raises DistIRError if
    no plan has a value of a knob with an option.
    """

    def __init__(self, sequence: NamedSequenceOp, plans: Sequence[GridPlan]):
        ops = sequence.body.block.ops
        self._ops = [op for op in ops if isinstance(op, KnobOp | RequireOp)]
        knobs = [op for op in self._ops if isinstance(op, KnobOp)]
        self.plans = [plan for plan in plans if self._has_values_of(plan, knobs)]
        if not self.plans:
            asked = [f"{k.knob.data} ({k.option.data})" for k in knobs if k.option]
            raise DistIRError(
                f"the knobs of the schedule that are options, {', '.join(asked)}, have the "
                f"values of none of the {len(plans)} plans of the grid, such as {plans[0]}; "
                f"change their values, or the options of the grid"
            )
        values = [plan_values(plan) for plan in self.plans]
        varied = [n for n in values[0] if len({each[n] for each in values}) > 1]
        free = [knob for knob in knobs if knob.option is None]
        self._knobs = {
            knob.knob.data: [knob_value(value) for value in knob.all_values]
            for knob in free
            if len(knob.all_values) > 1
        }
        self.coordinates = (*self._knobs, *varied)
        self.most = len(self.plans) * prod(len(k.all_values) for k in free)
        """An upper bound of the number of points in the space."""

    def _has_values_of(self, plan: GridPlan, knobs: Sequence[KnobOp]) -> bool:
        return all(
            any(_agrees(knob, value, plan) for value in knob.all_values)
            for knob in knobs
        )

    def points(self) -> Iterator[Point]:
        """
        Yields all points (knob values and plans). Points with the same knob values come
        one after the other.
        """
        found: dict[Chosen, list[GridPlan]] = {}
        for plan in self.plans:
            for chosen in self._choices(plan, {}):
                found.setdefault(chosen, []).append(plan)
        for chosen, plans in found.items():
            yield from (Point(chosen, plan) for plan in plans)

    def along(self, point: Point, coordinate: str) -> list[Point]:
        """
        Returns `point` and all points that differ from it only in `coordinate`. There
        are two exceptions. If the schedule excludes the present values of the other
        knobs, these knobs may differ too. If d, t and p change, the number of
        micro-batches may also change, because it depends on the pipeline.
        """
        found: list[Point] = []
        own = plan_values(point.plan)
        free = {coordinate, "k"} if coordinate == DEGREES else {coordinate}
        values = {n: v for n, v in point.chosen if n in self._knobs}
        for plan in self.plans:
            if any(v != own[n] for n, v in plan_values(plan).items() if n not in free):
                continue
            moves = [values]
            if coordinate in self._knobs:
                every = self._knobs[coordinate]
                moves = [{**values, coordinate: value} for value in every]
            for move in moves:
                chosen = [*self._choices(plan, move)]
                only = {n: v for n, v in move.items() if n == coordinate}
                found += [
                    Point(each, plan) for each in chosen or self._choices(plan, only)
                ]
        return found

    def drawn(self, random: Random) -> Point:
        """
        Returns a random point. Raises DistIRError if the schedule excludes all drawn
        points.
        """
        for _ in range(_TRIES):
            plan = random.choice(self.plans)
            chosen = next(self._choices(plan, {}, random), None)
            if chosen is not None:
                return Point(chosen, plan)
        raise DistIRError(
            f"the schedule excludes each of {_TRIES} combinations that were drawn; look at "
            f"what it requires of its knobs"
        )

    def _choices(
        self,
        plan: GridPlan,
        fixed: Mapping[str, KnobChoice],
        random: Random | None = None,
    ) -> Iterator[Chosen]:
        """
        Yields the combinations of knob values that are possible with `plan` and contain
        the values in `fixed`. If `random` is given, one value is drawn for each knob,
        and at most one combination is yielded.
        """

        def rest(place: int, known: dict[SSAValue, KnobValue]) -> Iterator[Chosen]:
            if place == len(self._ops):
                yield tuple(
                    (op.knob.data, knob_value(known[op.result]))
                    for op in self._ops
                    if isinstance(op, KnobOp)
                )
                return
            op = self._ops[place]
            if isinstance(op, RequireOp):
                if op.holds.data[case_number(op.knobs, known)].value.data:
                    yield from rest(place + 1, known)
                return
            wanted = fixed.get(op.knob.data)
            values = [
                value
                for value in possible_values(op, known)
                if wanted in (None, knob_value(value)) and _agrees(op, value, plan)
            ]
            for value in [random.choice(values)] if random and values else values:
                yield from rest(place + 1, {**known, op.result: value})

        return rest(0, {})


def _agrees(knob: KnobOp, value: KnobValue, plan: GridPlan) -> bool:
    """
    Whether the value of a knob agrees with the plan. If the knob has an option, its
    value must be the value of this option in the plan; any other knob agrees.
    """
    option = knob.option
    return option is None or knob_value(value) == getattr(plan, option.data)
