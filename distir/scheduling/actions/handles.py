"""Applies the ops that return handles of modules and of parameters."""

from __future__ import annotations

import re
from math import floor

from xdsl.ir import Operation

from distir.dialects.schedule import FirstOp, MatchOp, ParametersOp
from distir.errors import DistIRError, listed
from distir.scheduling.knobs import knob_value
from distir.scheduling.run import ScheduleRun, origin, schedule_action


@schedule_action("schedule.match")
def match(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.match`: finds the modules whose path matches a pattern. Raises
    DistIRError if no module matches, or if the number of matches is not the expected
    one.
    """
    assert isinstance(op, MatchOp)
    roots, pattern = run.modules_of(op.root), op.pattern.data
    try:
        wanted = re.compile(pattern) if op.regex is not None else pattern
    except re.error as error:
        raise DistIRError(
            f"{origin(op)}: {pattern!r} is no regular expression: {error}"
        ) from error
    found = run.modules.find(wanted, roots)
    if not found:
        inside = f" in {listed(roots)}" if roots != [""] else ""
        near = listed(run.modules.nearest(pattern, roots))
        top = listed([s for s in run.modules.scopes if "." not in s], 8)
        raise DistIRError(
            f"{origin(op)}: no module{inside} matches {pattern!r}; "
            + (f"there are {near}" if near else f"the model has {top or 'no scopes'}")
        )
    expected = op.count and op.count.value.data
    if expected is not None and len(found) != expected:
        raise DistIRError(
            f"{origin(op)}: {pattern!r} is expected to match {expected} modules, but "
            f"matches {len(found)}: {listed(found)}"
        )
    run.set_modules(op.result, found)


@schedule_action("schedule.first")
def first(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.first`: selects the first of the modules that a handle stands for.
    Raises DistIRError if there are fewer modules than requested.
    """
    assert isinstance(op, FirstOp)
    modules = run.modules_of(op.modules)
    amount = knob_value(op.amount) if op.amount else run.value_of(op.knob)  # type: ignore[arg-type]
    count = floor(amount * len(modules)) if isinstance(amount, float) else amount
    if isinstance(count, str) or not 0 <= count <= len(modules):
        raise DistIRError(
            f"{origin(op)}: cannot take the first {amount} of {len(modules)} modules; give "
            f"a number of modules, or a part between 0.0 and 1.0"
        )
    run.set_modules(op.result, modules[:count])


@schedule_action("schedule.parameters")
def parameters(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.parameters`: finds the parameters of modules; the names of these
    parameters must match a pattern. Raises DistIRError if a module has no such
    parameter.
    """
    assert isinstance(op, ParametersOp)
    found: dict[int, None] = {}
    for scope in run.modules_of(op.modules):
        chosen = run.modules.parameters_called(op.pattern.data, scope)
        if not chosen:
            own = listed(list(run.modules.parameters(scope).values()), 8)
            raise DistIRError(
                f"{origin(op)}: module {scope!r} uses no parameter {op.pattern}; it uses "
                f"{own or 'none'}"
            )
        found.update(dict.fromkeys(chosen))
    run.set_parameters(op.result, list(found))
