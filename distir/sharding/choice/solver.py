"""The dynamic program behind the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp, ReturnOp
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
    """The dynamic program over one function's ops, in program order."""

    def __init__(self, chooser: AxisChooser, function: FuncOp):
        self.chooser = chooser
        self.function = function
        self.options = OpOptions(chooser, function.sym_name.data)
        self.ops = list(function.body.block.ops)
        self.last_use: dict[SSAValue, int] = {}
        for position, op in enumerate(self.ops):
            for value in op.operands:
                self.last_use[value] = position
        self.unused: dict[SSAValue, Available] = {}
        """Arguments before their first use: the same in every state, so in none."""
        self.states = States(chooser.parts)
        self.columns: dict[SSAValue, int] = {}
        """Where the live values are in a state."""
        self.free: list[int] = []
        """Columns of values that are dead."""
        self.width = 0
        self.is_entry = function.sym_name.data == chooser.entry

    def solve(self, arguments: Sequence[ArgumentKey]) -> list[FunctionChoice]:
        """Runs the dynamic program; see `AxisChooser.solve`."""
        for arg, key in zip(self.function.body.block.args, arguments, strict=True):
            self.unused[arg] = frozenset([key[0]])
            self.options.add_argument(arg, key)
        for position, op in enumerate(self.ops):
            self._add_arguments(op)
            if isinstance(op, ReturnOp):
                return self._finish(op, arguments)
            self.options.derive(op)
            self._step(position, op)
        raise DistIRError(
            f"function @{self.function.sym_name.data} does not end in func.return"
        )

    def _take_column(self, value: SSAValue) -> int:
        if self.free:
            self.columns[value] = self.free.pop()
        else:
            self.columns[value] = self.width
            self.width += 1
        return self.columns[value]

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
        # Many states agree on this op's operands; what it can do is found once.
        found = self.states.groups(columns)
        groups = {group: number for number, group in enumerate(dict.fromkeys(found))}
        choices = [list(self.options.of(op, group)) for group in groups]
        dead = [v for v in dict.fromkeys(op.operands) if self.last_use[v] == position]
        freed = {self.columns.pop(v): NOTHING for v in dead}
        self.free += freed
        results = [
            (i, self._take_column(r))
            for i, r in enumerate(op.results)
            if r in self.last_use
        ]
        for i, column in results:
            self.states.resize(column, self.chooser.info(op).result_bytes[i])

        def option(
            group: Sequence[Available], choice: OpChoice, price: float
        ) -> Option:
            changes: dict[int, Available] = {}
            for column, have, placement in zip(
                columns, group, choice.operands, strict=True
            ):
                before, fresh = changes.get(column, have), frozenset([placement])
                changes[column] = fresh if FREE in before else before | fresh
            changes |= freed
            changes |= {c: frozenset([choice.results[i]]) for i, c in results}
            return Option(choice, price, changes)

        self.states.advance(
            [groups[group] for group in found],
            [
                [option(group, *priced) for priced in of_group]
                for group, of_group in zip(groups, choices, strict=True)
            ],
        )

    def _finish(
        self,
        op: ReturnOp,
        arguments: Sequence[ArgumentKey],
    ) -> list[FunctionChoice]:
        best: dict[tuple[Placement, ...], FunctionChoice] = {}
        columns = [self.columns[value] for value in op.operands]
        found = self.states.groups(columns)
        for available, node in zip(found, self.states.nodes, strict=True):
            if (
                self.is_entry
                and best
                and node.cost >= min(c.cost for c in best.values())
            ):
                break
            choices = node.path()
            placed = self._arguments(arguments, choices)
            price, results = self._returned(op, available, placed)
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
        available: Sequence[Available],
        arguments: Sequence[Placement],
    ) -> tuple[float, tuple[Placement, ...]]:
        """
        How the results leave the function, and the price. A result that replaces an
        argument in the next step must be placed like it; within the program values may
        stay partial.
        """
        chooser, info = self.chooser, self.chooser.info(op)
        total = 0.0
        results: list[Placement] = []
        for i, placements in enumerate(available):
            replaced = chooser.updates.get(i) if self.is_entry else None
            only_partial = all(p.kind == "partial" for p in placements)
            if replaced is not None:
                placement = arguments[replaced]
                value = op.operands[i]
                total += self.options.move(
                    value,
                    placements,
                    placement,
                    info.operand_bytes[i],
                    may_slice=True,
                )
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
