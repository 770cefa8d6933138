"""The dynamic program behind the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.errors import DistIRError
from distir.sharding.choice.choices import ArgumentKey, FunctionChoice, OpChoice
from distir.sharding.choice.options import OpOptions
from distir.sharding.choice.placement import FREE, WHOLE, Placement
from distir.sharding.choice.prices import gather_price
from distir.sharding.choice.states import (
    NOTHING,
    Available,
    Option,
    States,
    conversion_price,
)

if TYPE_CHECKING:
    from distir.sharding.choice.chooser import AxisChooser

MAX_ALTERNATIVES = 4


class FunctionSolver:
    """
    The dynamic program over one function's ops.

    A result of the entry function that replaces an argument in the next step must be placed
    like it. What that costs is known, and counted, as soon as the result is there, and ops
    that give nothing but such results (updates of parameters) are looked at as soon as
    their operands are there. Else every way of having each gradient would be a state of
    its own up to the end of the program.

    For the same reason the calls of a function between its first and its last one, the
    layers of a model, take the same choice wherever their arguments come alike. Each may
    leave residuals for its backward in several ways, and what is best shows only there.
    """

    def __init__(self, chooser: AxisChooser, function: FuncOp):
        self.chooser = chooser
        self.function = function
        self.options = OpOptions(chooser, function.sym_name.data)
        self.is_entry = function.sym_name.data == chooser.entry
        self.calls: dict[str, list[int]] = {}
        """Where each function is called."""
        self.alike: dict[str, int] = {}
        """The column with what was chosen for its calls, while there are more to come."""
        self.settled: dict[SSAValue, Placement] = {}
        """How results leave the function that are placed where they are computed."""
        self.ops: list[Operation] = []
        """The ops, in the order in which they are looked at."""
        self.last_use: dict[SSAValue, int] = {}
        self.unused: dict[SSAValue, Available] = {}
        """Arguments before their first use: the same in every state, so in none."""
        self.states = States(chooser.parts)
        self.columns: dict[SSAValue, int] = {}
        """Where the live values are in a state."""
        self.free: list[int] = []
        """Columns of values that are dead."""
        self.width = 0

    def solve(self, arguments: Sequence[ArgumentKey]) -> list[FunctionChoice]:
        """Runs the dynamic program; see `AxisChooser.solve`."""
        for arg, key in zip(self.function.body.block.args, arguments, strict=True):
            self.unused[arg] = frozenset([key[0]])
            self.options.add_argument(arg, key)
        self._settle(arguments)
        for position, op in enumerate(self.ops):
            self._add_arguments(op)
            if isinstance(op, ReturnOp):
                return self._finish(op, arguments)
            self.options.derive(op)
            self._step(position, op)
        raise DistIRError(
            f"function @{self.function.sym_name.data} does not end in func.return"
        )

    def _settle(self, arguments: Sequence[ArgumentKey]) -> None:
        """Finds the results that are placed at once, and the order of the ops."""
        ops = list(self.function.body.block.ops)
        updates = self.chooser.updates if self.is_entry else {}
        if isinstance(ops[-1], ReturnOp):
            for index, argument in updates.items():
                value, placement = ops[-1].operands[index], arguments[argument][0]
                if placement != FREE and value.has_one_use():
                    self.settled[value] = placement
        positions: dict[SSAValue, int] = {
            result: position for position, op in enumerate(ops) for result in op.results
        }
        keys: dict[Operation, tuple[int, int]] = {}
        for position, op in enumerate(ops):
            keys[op] = (position, 0)
            used = [r for r in op.results if r.first_use is not None]
            is_last = used and all(r in self.settled for r in used)
            if is_last and not isinstance(op, CallOp):
                last = max((positions.get(v, -1) for v in op.operands), default=-1)
                keys[op] = (last, 1 + position)
        self.ops = sorted(ops, key=keys.__getitem__)
        for position, op in enumerate(self.ops):
            if isinstance(op, CallOp):
                self.calls.setdefault(op.callee.string_value(), []).append(position)
            for value in op.operands:
                if value not in self.settled:
                    self.last_use[value] = position

    def _take_column(self, value: SSAValue) -> int:
        self.columns[value] = self._free_column()
        return self.columns[value]

    def _free_column(self) -> int:
        if self.free:
            return self.free.pop()
        self.width += 1
        return self.width - 1

    def _add_arguments(self, op: Operation) -> None:
        """Adds the arguments that the op is the first to use to the states."""
        new = [v for v in dict.fromkeys(op.operands) if v in self.unused]
        for value in new:
            index = list(op.operands).index(value)
            size = self.chooser.info(op).operand_bytes[index]
            self.states.add_value(
                self._take_column(value), size, self.unused.pop(value)
            )

    def _step(self, position: int, op: Operation) -> None:
        """Brings the states from before an op to after it."""
        columns = [self.columns[v] for v in op.operands]
        sizes = self.chooser.info(op).result_bytes
        alike = self._alike(position, op)
        # Many states agree on this op's operands; what it can do is found once.
        found = self.states.groups([*columns, *alike])
        groups = {group: number for number, group in enumerate(dict.fromkeys(found))}
        choices = [self._choices(op, group) for group in groups]
        dead = [v for v in dict.fromkeys(op.operands) if self.last_use[v] == position]
        freed = {self.columns.pop(v): NOTHING for v in dead}
        self.free += freed
        results = [
            (i, self._take_column(r))
            for i, r in enumerate(op.results)
            if r in self.last_use
        ]
        for i, column in results:
            self.states.resize(column, sizes[i])

        settled = [
            (i, self.settled[r]) for i, r in enumerate(op.results) if r in self.settled
        ]

        def option(
            group: Sequence[Available], choice: OpChoice, price: float
        ) -> Option:
            changes: dict[int, Available] = {}
            if alike and choice.callee is not None:
                changes[alike[0]] = group[-1] | {choice.callee.mark}
            for column, have, placement in zip(
                columns, group, choice.operands, strict=False
            ):
                before, fresh = changes.get(column, have), frozenset([placement])
                changes[column] = fresh if FREE in before else before | fresh
            changes |= freed
            changes |= {c: frozenset([choice.results[i]]) for i, c in results}
            for i, target in settled:
                have = frozenset([choice.results[i]])
                price += self._update_price(op.results[i], have, target, sizes[i])
            return Option(choice, price, changes)

        self.states.advance(
            [groups[group] for group in found],
            [
                [option(group, *priced) for priced in of_group]
                for group, of_group in zip(groups, choices, strict=True)
            ],
        )

    def _choices(
        self, op: Operation, group: tuple[Available, ...]
    ) -> list[tuple[OpChoice, float]]:
        """What an op can do where its operands, and calls like it, are like that."""
        count = len(op.operands)
        found = self.options.of(op, group[:count])
        if len(group) > count:
            taken = group[count]
            same = [c for c in found if c[0].callee and c[0].callee.mark in taken]
            return same or found
        return found

    def _alike(self, position: int, op: Operation) -> list[int]:
        """
        For a call between the first and the last one of a function the column that holds
        what was chosen for the others.
        """
        if not isinstance(op, CallOp):
            return []
        name = op.callee.string_value()
        calls = self.calls[name]
        if position == calls[-1] and name in self.alike:
            column = self.alike.pop(name)
            self.states.add_value(column, 0.0, NOTHING)
            self.free.append(column)
        if position in (calls[0], calls[-1]):
            return []
        if name not in self.alike:
            self.alike[name] = self._free_column()
            self.states.add_value(self.alike[name], 0.0, NOTHING)
        return [self.alike[name]]

    def _finish(
        self,
        op: ReturnOp,
        arguments: Sequence[ArgumentKey],
    ) -> list[FunctionChoice]:
        best: dict[tuple[Placement, ...], FunctionChoice] = {}
        left = [(i, v) for i, v in enumerate(op.operands) if v not in self.settled]
        found = self.states.groups([self.columns[value] for _, value in left])
        for available, node in zip(found, self.states.nodes, strict=True):
            if (
                self.is_entry
                and best
                and node.cost >= min(c.cost for c in best.values())
            ):
                break
            choices = [c.on(o) for c, o in zip(node.path(), self.ops[:-1], strict=True)]
            placed = self._arguments(arguments, choices)
            ways = dict(zip((i for i, _ in left), available, strict=True))
            price, results = self._returned(op, ways, placed)
            cost = node.cost + price
            if results not in best or cost < best[results].cost:
                name = self.function.sym_name.data
                best[results] = FunctionChoice(name, cost, placed, results, choices)
        sizes = self.chooser.info(op).operand_bytes
        kept: list[FunctionChoice] = []
        for choice in sorted(best.values(), key=lambda choice: choice.cost):
            # What the caller can get from a cheaper choice by communication, for no
            # more, is no alternative.
            if not any(
                other.cost + self._changes(other.results, choice.results, sizes)
                <= choice.cost
                for other in kept
            ):
                kept.append(choice)
        return kept[:MAX_ALTERNATIVES]

    def _changes(
        self,
        before: Sequence[Placement],
        after: Sequence[Placement],
        sizes: Sequence[float],
    ) -> float:
        """The price of bringing results from one way of leaving to another."""
        return sum(
            conversion_price(
                size, frozenset([have]), frozenset([want]), self.chooser.parts
            )
            for have, want, size in zip(before, after, sizes, strict=True)
            if have != want
        )

    def _returned(
        self,
        op: ReturnOp,
        available: Mapping[int, Available],
        arguments: Sequence[Placement],
    ) -> tuple[float, tuple[Placement, ...]]:
        """
        How the results leave the function, and the price, given the ways in which those
        are there that are not settled. A result that replaces an argument in the next step
        must be placed like it; within the program values may stay partial.
        """
        chooser, info = self.chooser, self.chooser.info(op)
        total = 0.0
        results: list[Placement] = []
        for i, value in enumerate(op.operands):
            if value in self.settled:
                results.append(self.settled[value])
                continue
            placements = available[i]
            replaced = chooser.updates.get(i) if self.is_entry else None
            only_partial = all(p.kind == "partial" for p in placements)
            if replaced is not None:
                placement, size = arguments[replaced], info.operand_bytes[i]
                total += self._update_price(value, placements, placement, size)
            elif only_partial and not self.is_entry:
                placement = min(placements)
            else:
                placement, price = self.options.settled(info, i, placements)
                placement = WHOLE if placement == FREE else placement
                total += price
                if (
                    self.is_entry
                    and placement.kind == "split"
                    and chooser.split_parameters
                ):
                    # Whoever gets the program's result will want it whole.
                    total += gather_price(info.operand_bytes[i], chooser.parts)
            results.append(placement)
        return total, tuple(results)

    def _update_price(
        self, value: SSAValue, have: Available, target: Placement, size: float
    ) -> float:
        """Of placing a value like the argument that it replaces in the next step."""
        return self.options.move(value, have, target, size, may_slice=True)

    def _arguments(
        self, arguments: Sequence[ArgumentKey], choices: Sequence[OpChoice]
    ) -> tuple[Placement, ...]:
        """Arguments that came free are placed as their first user chose."""
        if all(placement != FREE for placement, _ in arguments):
            return tuple(placement for placement, _ in arguments)
        decided: dict[SSAValue, Placement] = {}
        for choice in choices:
            for value, placement in zip(
                choice.op.operands, choice.operands, strict=True
            ):
                decided.setdefault(value, placement)
        return tuple(
            decided.get(arg, WHOLE) if placement == FREE else placement
            for arg, (placement, _) in zip(
                self.function.body.block.args, arguments, strict=True
            )
        )
