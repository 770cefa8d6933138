"""
Finds successive calls of one function that can be written as a loop.

In iteration i, each operand is one of these: the same value as in all other iterations,
a result of iteration i - 1, or element i of a list (backwards: element n - 1 - i).
Lists collect results that are used anywhere but in the next iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.lowering.emitter import known_constant


@dataclass(eq=False)
class ValueList:
    """
    A Python list with one item for each iteration: a value, or a tuple of several
    values. `name` is set when the list is written. `hint` is the value that gives the
    list its name.
    """

    items: list[tuple[SSAValue, ...]]
    hint: SSAValue
    name: str = ""


@dataclass
class FromList:
    """
    Operands that are the elements of list `source` in order, or in reverse order if
    `backwards`.
    """

    source: ValueList
    backwards: bool


@dataclass(eq=False)
class CallRun:
    """
    Calls that form a loop.

    - `carried`: for each operand that is a result of the previous call, the index of
      this result;
    - `taken`: for each operand from a list, the list, and the index in the tuple of an
      item;
    - `given`: for each operand that varies and is in no list, its values in all
      iterations;
    - `inputs`: for each carried operand that is used outside of the loop, the list that
      collects its values;
    - `outputs`: the results that a list collects in all iterations, and this list, or
      None;
    - `last`: the results that are used after the last iteration only.
    """

    calls: list[CallOp]
    carried: dict[int, int] = field(default_factory=dict[int, int])
    taken: dict[int, tuple[FromList, int]] = field(
        default_factory=dict[int, tuple[FromList, int]]
    )
    given: dict[int, list[SSAValue]] = field(default_factory=dict[int, list[SSAValue]])
    inputs: dict[int, ValueList] = field(default_factory=dict[int, ValueList])
    outputs: tuple[list[int], ValueList] | None = None
    last: set[int] = field(default_factory=set[int])


Statement = Operation | CallRun


@dataclass
class MethodPlan:
    """The statements of a function in order, and the lists that hold its values."""

    statements: list[Statement]
    lists: dict[SSAValue, tuple[ValueList, int, int | None]]
    """
    For each value in a list: the list, the index of the item, and the index inside of
    the item if it is a tuple, else None.
    """


def plan(function: FuncOp, members: dict[CallOp, set[int]]) -> MethodPlan:
    """
    Returns the statements of a function. `members` gives, for each call, the operands
    that the callee holds as members and the call does not pass.
    """
    block = function.body.block
    ops = [op for op in block.ops if not _prints_nothing(op)]
    groups: list[list[Operation]] = []
    for op in ops:
        last = groups[-1][-1] if groups else None
        if (
            isinstance(op, CallOp)
            and isinstance(last, CallOp)
            and op.callee == last.callee
        ):
            groups[-1].append(op)
        else:
            groups.append([op])
    while True:
        planned = _Planner(groups, members)
        failed = planned.plan()
        if failed is None:
            return MethodPlan(planned.statements, planned.lists)
        at = groups.index(failed)
        groups[at : at + 1] = [[op] for op in failed]


def _prints_nothing(op: Operation) -> bool:
    return bool(op.results) and known_constant(op.results[0]) is not None


class _Planner:
    def __init__(
        self, groups: Sequence[list[Operation]], members: dict[CallOp, set[int]]
    ):
        self.groups = groups
        self.members = members
        self.place = {op: i for i, group in enumerate(groups) for op in group}
        self.statements: list[Statement] = []
        self.lists: dict[SSAValue, tuple[ValueList, int, int | None]] = {}
        self.known: list[ValueList] = []

    def plan(self) -> list[Operation] | None:
        """
        Makes the statements. Returns the first group of calls that cannot be a loop, or
        None if all groups can.
        """
        for group in self.groups:
            calls = [op for op in group if isinstance(op, CallOp)]
            if len(group) == 1:
                self.statements.append(group[0])
            elif (run := self._run(calls)) is not None:
                self.statements.append(run)
            else:
                return group
        return None

    def _run(self, calls: list[CallOp]) -> CallRun | None:
        run = CallRun(calls)
        inside = set[Operation](calls)
        for position in range(len(calls[0].operands)):
            if position in self.members[calls[0]]:
                continue
            values = [c.operands[position] for c in calls]
            if len(set(values)) == 1 and values[0].owner not in inside:
                continue
            if not self._operand(run, position, values, inside):
                return None
        return run if self._results(run, inside) else None

    def _operand(
        self,
        run: CallRun,
        position: int,
        values: list[SSAValue],
        inside: set[Operation],
    ) -> bool:
        for result in range(len(run.calls[0].results)):
            before = [c.results[result] for c in run.calls[:-1]]
            if values[1:] == before and values[0].owner not in inside:
                run.carried[position] = result
                starts = {
                    run.calls[0].operands[p]
                    for p, r in run.carried.items()
                    if r == result
                }
                return len(starts) == 1  # one variable
        if any(v.owner in inside for v in values):
            return False
        for source in self.known:
            for part in range(len(source.items[0])):
                column = [item[part] for item in source.items]
                for backwards in (False, True):
                    if values == (column[::-1] if backwards else column):
                        run.taken[position] = FromList(source, backwards), part
                        return True
        run.given[position] = values
        return True

    def _results(self, run: CallRun, inside: set[Operation]) -> bool:
        """
        Chooses the variables and lists that hold the results of a loop. Returns whether
        the loop can be written.
        """
        calls, carried = run.calls, run.carried
        grouped: dict[frozenset[int], list[int]] = {}
        for result in range(len(calls[0].results)):
            users = [self._others(c.results[result], run, inside) for c in calls]
            if any(users[:-1]) and result in carried.values():
                (position, *_) = (p for p, r in carried.items() if r == result)
                self._add_inputs(run, position)
                if users[-1]:
                    run.last.add(result)
            elif any(users[:-1]):
                if any(each != users[0] for each in users):
                    return False
                grouped.setdefault(users[0], []).append(result)
            elif users[-1]:
                run.last.add(result)
        if len(grouped) > 1:
            return False
        for results in grouped.values():
            items: list[tuple[SSAValue, ...]] = [
                tuple(c.results[r] for r in results) for c in calls
            ]
            found = ValueList(items, items[0][0])
            run.outputs = results, found
            self.known.append(found)
            for i, item in enumerate(items):
                for k, value in enumerate(item):
                    part = k if len(item) > 1 else None
                    self.lists[value] = found, i, part
        return True

    def _add_inputs(self, run: CallRun, position: int) -> None:
        values = [c.operands[position] for c in run.calls]
        found = ValueList([(v,) for v in values], values[1])
        run.inputs[position] = found
        self.known.append(found)
        for i, value in enumerate(values[1:]):
            self.lists[value] = found, i + 1, None

    def _others(
        self, value: SSAValue, run: CallRun, inside: set[Operation]
    ) -> frozenset[int]:
        """
        Returns the indices of the statements that use a value, except for the loop
        itself.
        """
        return frozenset(
            self.place[use.operation]
            for use in value.uses
            if use.operation not in inside
        )


def uses(statement: Statement) -> Iterable[SSAValue]:
    """Returns the distinct values that a statement uses."""
    if isinstance(statement, CallRun):
        calls = statement.calls
        return dict.fromkeys(v for c in calls for v in c.operands)
    return dict.fromkeys(statement.operands)
