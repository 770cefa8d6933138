"""
Applies the ops that define knobs (tunable values of a schedule), and the ops that
exclude combinations of their values.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from distir.dialects.schedule import KnobOp, RequireOp
from distir.errors import DistIRError
from distir.scheduling.knobs import (
    case_number,
    knob_op,
    knob_value,
    possible_values,
)
from distir.scheduling.run import ScheduleRun, origin, schedule_action


@schedule_action("schedule.knob")
def knob(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.knob`: sets the knob (a tunable value) to the user's choice. A
    knob with a single possible value needs no choice. Raises DistIRError if the value
    is missing or not possible.
    """
    assert isinstance(op, KnobOp)
    name = op.knob.data
    values = possible_values(op, run.values)
    texts = [str(knob_value(value)) for value in values]
    if name in run.knobs:
        raise DistIRError(f"{origin(op)}: there is a knob {name!r} already")
    run.knobs.add(name)
    beside = f" beside {_chosen(op.earlier, run)}" if op.earlier else ""
    if not values:
        raise DistIRError(
            f"{origin(op)}: knob {name!r} has no value that goes with "
            f"{_chosen(op.earlier, run)}; choose another one of these"
        )
    if name not in run.chosen and len(values) > 1:
        raise DistIRError(
            f"{origin(op)}: knob {name!r} has no value; choose one of {', '.join(texts)} "
            f"with --set {name}=VALUE"
        )
    given = run.chosen.get(name, texts[0])
    for attr, text in zip(values, texts, strict=True):
        value = knob_value(attr)
        if given == text or (not isinstance(value, str) and _number(given) == value):
            run.values[op.result] = attr
            return
    raise DistIRError(
        f"{origin(op)}: knob {name!r} cannot be {given}{beside}; choose one of "
        f"{', '.join(texts)}"
    )


@schedule_action("schedule.require")
def require(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.require`: raises DistIRError if the schedule excludes the chosen
    combination of knob values.
    """
    assert isinstance(op, RequireOp)
    if not op.holds.data[case_number(op.knobs, run.values)].value.data:
        raise DistIRError(
            f"{origin(op)}: the schedule excludes {_chosen(op.knobs, run)}; choose other "
            f"values"
        )


def _chosen(knobs: Sequence[SSAValue], run: ScheduleRun) -> str:
    return ", ".join(f"{knob_op(k).knob.data}={run.value_of(k)}" for k in knobs)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
