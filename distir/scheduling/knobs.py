"""Knobs: tunable values of a schedule, chosen when the schedule is applied."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, f64, i64
from xdsl.ir import Attribute, SSAValue

from distir.dialects.schedule import KnobOp, KnobValue
from distir.errors import DistIRError

KnobChoice = float | int | str
"""A value of a knob: a number or a text."""

MOST_CASES = 10_000
"""
The maximal number of combinations of knobs that another knob or a requirement may
depend on.
"""

_Case = TypeVar("_Case")


@dataclass(frozen=True)
class Knob:
    """
    A tunable value, chosen when the schedule is applied. `Schedule.knob` makes it.
    `handle` stands for the value in the recorded schedule.
    """

    name: str
    handle: SSAValue


def knob_attribute(value: KnobChoice) -> KnobValue:
    """Returns the value of a knob, a number or text, as an attribute."""
    if isinstance(value, str):
        return StringAttr(value)
    return IntegerAttr(value, i64) if isinstance(value, int) else FloatAttr(value, f64)


def knob_value(attr: Attribute) -> KnobChoice:
    """
    Returns the number or text that an attribute holds. Raises DistIRError for other
    attributes.
    """
    if isinstance(attr, IntegerAttr | FloatAttr):
        return attr.value.data
    if isinstance(attr, StringAttr):
        return attr.data
    raise DistIRError(f"{attr} is no value of a knob; give a number or a text")


def knob_op(handle: SSAValue) -> KnobOp:
    """Returns the op that defines the handle of a knob."""
    assert isinstance(handle.owner, KnobOp)
    return handle.owner


def knobs_of(
    function: Callable[..., object], known: Mapping[str, Knob], origin: str
) -> list[Knob]:
    """
    Returns the knobs that the parameters of `function` name, in the order of the
    parameters. Raises DistIRError if a parameter does not name a knob, or if the knobs
    have too many combinations. `origin` is the first part of the error message.
    """
    names = list(inspect.signature(function).parameters)
    for name in names:
        if name not in known:
            raise DistIRError(
                f"{origin}: the function takes {name!r}, but there is no such knob before "
                f"this line; there are {', '.join(known) or 'none'}"
            )
    knobs = [known[name] for name in names]
    count = prod(len(knob_op(knob.handle).all_values) for knob in knobs)
    if count > MOST_CASES:
        raise DistIRError(
            f"{origin}: the function depends on {count} combinations of knobs, more than "
            f"{MOST_CASES}; let it depend on fewer knobs"
        )
    return knobs


def cases(function: Callable[..., _Case], knobs: Sequence[Knob]) -> list[_Case]:
    """
    Calls `function` for each combination of the knobs' values, and returns the results
    in the order that `KnobOp` defines.
    """
    values = [map(knob_value, knob_op(knob.handle).all_values) for knob in knobs]
    return [function(*combination) for combination in product(*values)]


def case_number(
    handles: Sequence[SSAValue], chosen: Mapping[SSAValue, KnobValue]
) -> int:
    """
    Returns the index of the combination of knob values in `chosen`, among all
    combinations of the knobs `handles`.
    """
    number = 0
    for handle in handles:
        values = knob_op(handle).all_values
        number = number * len(values) + values.index(chosen[handle])
    return number


def possible_values(
    op: KnobOp, chosen: Mapping[SSAValue, KnobValue]
) -> list[KnobValue]:
    """
    Returns the possible values of a knob, given the values `chosen` for earlier knobs.
    """
    return op.cases[case_number(op.earlier, chosen)]
