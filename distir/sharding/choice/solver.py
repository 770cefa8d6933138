"""The dynamic program behind the choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.errors import DistIRError
from distir.sharding.choice.candidates import OpCandidates
from distir.sharding.choice.choices import ArgumentKey, FunctionChoice, OpChoice, Source
from distir.sharding.choice.placement import FREE, WHOLE, Placement, placement_in
from distir.sharding.choice.prices import gather_price, reduce_price

if TYPE_CHECKING:
    from distir.sharding.choice.chooser import AxisChooser

MAX_STATES = 256
MAX_ALTERNATIVES = 4
MAX_COMPARED = 8


class _Node(NamedTuple):
    """A state of the dynamic program: its cost and how it was reached."""

    cost: float
    parent: _Node | None
    choice: OpChoice | None

    def path(self) -> list[OpChoice]:
        """The choices that led here, in program order."""
        choices: list[OpChoice] = []
        node = self
        while node.parent is not None:
            assert node.choice is not None
            choices.append(node.choice)
            node = node.parent
        choices.reverse()
        return choices


Available = frozenset[Placement]
"""The ways in which a value is there already."""

State = tuple[Available, ...]
"""What the axis does to each live value, by slot."""

NOTHING: Available = frozenset()

REQUESTED = -1
"""Stands for a request among the operands that support a split."""


class FunctionSolver:
    """The dynamic program over one function's ops, in program order."""

    def __init__(self, chooser: AxisChooser, function: FuncOp):
        self.chooser = chooser
        self.function = function
        self.ops = list(function.body.block.ops)
        self.derived: dict[SSAValue, Source] = {}
        """Values that follow from parameters and constants alone."""
        self.requested: set[SSAValue] = set()
        """Those among them that come split already, not by this solver's choice."""
        self.last_use: dict[SSAValue, int] = {}
        for position, op in enumerate(self.ops):
            for value in op.operands:
                self.last_use[value] = position
        self.unused: dict[SSAValue, Available] = {}
        """Arguments before their first use: the same in every state, so in none."""
        self.slots: dict[SSAValue, int] = {}
        """Where the live values are in a state."""
        self.sizes: dict[int, float] = {}
        """Bytes of the value in a slot on one device, if this axis does not split it."""
        self.free: list[int] = []
        """Slots of values that are dead."""
        self.width = 0
        self.late = chooser.late(function.sym_name.data)
        """Values whose partial sums are not reduced here."""
        self.is_entry = function.sym_name.data == chooser.entry

    def solve(self, arguments: Sequence[ArgumentKey]) -> list[FunctionChoice]:
        """Runs the dynamic program; see `AxisChooser.solve`."""
        args = self.function.body.block.args
        for arg, (placement, source) in zip(args, arguments, strict=True):
            self.unused[arg] = frozenset([placement])
            if source != "activation":
                self.derived[arg] = source
                if placement.kind == "split":
                    self.requested.add(arg)
        states: dict[State, _Node] = {(): _Node(0.0, None, None)}
        for position, op in enumerate(self.ops):
            states = self._with_arguments(op, states)
            if isinstance(op, ReturnOp):
                return self._finish(op, states, arguments)
            self._derive(op)
            states = self._step(position, op, states)
        raise DistIRError(
            f"function @{self.function.sym_name.data} does not end in func.return"
        )

    def _take_slot(self, value: SSAValue) -> int:
        if self.free:
            self.slots[value] = self.free.pop()
        else:
            self.slots[value] = self.width
            self.width += 1
        return self.slots[value]

    def _with_arguments(
        self, op: Operation, states: dict[State, _Node]
    ) -> dict[State, _Node]:
        """The states with the arguments that the op is the first to use."""
        new = [v for v in dict.fromkeys(op.operands) if v in self.unused]
        if not new:
            return states
        changes = {self._take_slot(value): self.unused.pop(value) for value in new}
        sizes = self.chooser.info(op).operand_bytes
        for value in new:
            index = list(op.operands).index(value)
            self.sizes[self.slots[value]] = sizes[index]
        return {self._changed(state, changes): n for state, n in states.items()}

    def _changed(self, state: State, changes: Mapping[int, Available]) -> State:
        after = [*state, *[NOTHING] * (self.width - len(state))]
        for slot, available in changes.items():
            after[slot] = available
        return tuple(after)

    def _derive(self, op: Operation) -> None:
        """Records what an op's results are computed from."""
        sources = {self.derived.get(v, "activation") for v in op.operands}
        if "activation" in sources or isinstance(op, CallOp):
            return
        source: Source = "parameter" if "parameter" in sources else "constant"
        for result in op.results:
            self.derived[result] = source
            if any(v in self.requested for v in op.operands):
                self.requested.add(result)

    def _step(
        self, position: int, op: Operation, states: dict[State, _Node]
    ) -> dict[State, _Node]:
        slots = [self.slots[v] for v in op.operands]
        # Many states agree on this op's operands; their candidates are computed once.
        known: dict[tuple[Available, ...], list[tuple[OpChoice, float]]] = {}
        reached: list[tuple[float, State, _Node, OpChoice]] = []
        for state, node in states.items():
            available = tuple(state[slot] for slot in slots)
            options = known.get(available)
            if options is None:
                options = known[available] = list(self._options(op, available))
            for choice, price in options:
                reached.append((node.cost + price, state, node, choice))
        # Cheapest first: the first way to reach a state is the best one, and states are
        # built only until there are enough.
        reached.sort(key=itemgetter(0))
        dead = [v for v in dict.fromkeys(op.operands) if self.last_use[v] == position]
        freed = {self.slots.pop(v): NOTHING for v in dead}
        self.free += freed
        results = [
            (i, self._take_slot(r))
            for i, r in enumerate(op.results)
            if r in self.last_use
        ]
        for i, slot in results:
            self.sizes[slot] = self.chooser.info(op).result_bytes[i]
        new_states: dict[State, _Node] = {}
        for cost, state, node, choice in reached:
            changes: dict[int, Available] = {}
            for slot, placement in zip(slots, choice.operands, strict=True):
                before = changes.get(slot, state[slot])
                fresh = frozenset([placement])
                changes[slot] = fresh if FREE in before else before | fresh
            changes |= freed
            for i, slot in results:
                changes[slot] = frozenset([choice.results[i]])
            new_state = self._changed(state, changes)
            if new_state in new_states or self._dominated(new_state, cost, new_states):
                continue
            new_states[new_state] = _Node(cost, node, choice)
            if len(new_states) == MAX_STATES:
                break
        return new_states

    def _dominated(
        self, state: State, cost: float, kept: Mapping[State, _Node]
    ) -> bool:
        """
        Whether a kept state reaches this one by communication, for no more: what this
        state has already moved, that one can move when it is needed.
        """
        for other, node in islice(kept.items(), MAX_COMPARED):
            left = cost - node.cost
            for slot, (have, want) in enumerate(zip(other, state, strict=True)):
                if have != want:
                    left -= self._conversion(self.sizes[slot], have, want)
                    if left < 0:
                        break
            else:
                return True
        return False

    def _conversion(self, size: float, have: Available, want: Available) -> float:
        """The price of having a value of that size in all the ways of another state."""
        if FREE in have:
            return 0.0
        parts = self.chooser.parts
        price = 0.0
        for target in want:
            if target in have:
                continue
            prices = [inf]
            for source in have:
                match source.kind, target.kind:
                    case "split", "whole":
                        prices.append(gather_price(size, parts))
                    case "split", "split":
                        prices.append(gather_price(size, parts) / parts)
                    case "partial", "whole":
                        prices.append(reduce_price(size, parts))
                    case _:
                        pass
            price += min(prices)
        return price

    def _options(
        self, op: Operation, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        if isinstance(op, CallOp):
            yield from self._call(op, available)
        elif isinstance(op, ConstrainOp):
            yield from self._constrained(op, available[0])
        else:
            yield from self._compute(op, available)

    def _compute(
        self, op: Operation, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        info = self.chooser.info(op)
        for key, support in self._supported(info, available).items():
            candidate = info.candidate(*key)
            if candidate is None or self._is_foreign(info, key[0]):
                continue
            price = candidate.work
            for i, target in enumerate(candidate.operands):
                price += self._move(
                    op.operands[i],
                    available[i],
                    target,
                    info.operand_bytes[i],
                    may_slice=bool(support - {i}),
                )
            if price < inf:
                yield (
                    OpChoice(
                        op,
                        candidate.operands,
                        candidate.results,
                        candidate.factor,
                        candidate.run,
                        candidate.decompose,
                    ),
                    price,
                )
        yield from self._partial(info, available)

    def _is_foreign(self, info: OpCandidates, factor: int | None) -> bool:
        """
        Whether a split is not what an axis for parameters is there for: a contraction
        with a parameter splits along a dimension of the parameter; one of activations
        alone (attention scores) is not turned into partial sums.
        """
        if factor is None or not self.chooser.split_parameters or not info.rule.flops:
            return False
        parameters = [
            i
            for i, v in enumerate(info.op.operands)
            if self.derived.get(v) == "parameter"
        ]
        if parameters:
            return not any(
                factor in dim for i in parameters for dim in info.rule.operands[i]
            )
        return info.rule.factors[factor].kind == "reduction" and not any(
            v in self.derived for v in info.op.operands
        )

    def _partial(
        self, info: OpCandidates, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        """Letting partial values pass through, where the rule is linear in them."""
        whole = info.candidate(None, None)
        assert whole is not None
        for linear in info.rule.linear:
            monoids = [
                {p.monoid for p in available[i] if p.kind == "partial"}
                for i in linear.operands
            ]
            common = set[str].intersection(*monoids) if monoids else set[str]()
            for monoid in sorted(common & linear.monoids):
                partial = Placement("partial", monoid=monoid)
                operands = tuple(
                    partial if i in linear.operands else WHOLE
                    for i in range(len(available))
                )
                price = whole.work + sum(
                    self._move(
                        info.op.operands[i], available[i], p, info.operand_bytes[i]
                    )
                    for i, p in enumerate(operands)
                )
                if price < inf:
                    results = (partial,) * len(info.op.results)
                    yield OpChoice(info.op, operands, results), price

    def _supported(
        self, info: OpCandidates, available: tuple[Available, ...]
    ) -> dict[tuple[int | None, int | None], set[int]]:
        """
        The factors (with runs) worth trying and the operands that suggest each: those
        already split that way, and, where parameters may start a split, those derived
        from parameters. A suggestion by an activation or by a requested split lets
        whole operands be sliced; a split chosen for a parameter here does not.
        """
        found: dict[tuple[int | None, int | None], set[int]] = {(None, None): set()}
        starts: list[int] = []
        activations = [
            any(p.kind == "split" for p in placements)
            and info.op.operands[i] not in self.derived
            for i, placements in enumerate(available)
        ]
        for i, placements in enumerate(available):
            if (
                any(activations)
                and not activations[i]
                and not self.chooser.split_parameters
            ):
                # A parameter stored split over a data axis is gathered for its use.
                continue
            for placement in placements:
                if placement.kind == "split":
                    key = info.factor_of(False, i, placement)
                    if key is not None:
                        support = found.setdefault(key, set())
                        value = info.op.operands[i]
                        if value not in self.derived or value in self.requested:
                            support.add(i)
                elif placement.kind == "free" or (
                    placement.kind == "whole"
                    and self.chooser.split_parameters
                    and self.derived.get(info.op.operands[i]) == "parameter"
                ):
                    starts.append(i)
        for key in self.chooser.hinted_factors(info, self.chooser.wishes):
            found.setdefault(key, set()).add(REQUESTED)
        if not starts:
            return found
        # A split starts where a parameter meets a contraction, or before that where an
        # undecided parameter is prepared for one (transposed, cast). Added to an
        # activation (a bias, a table of positions) a parameter only follows: else it
        # would split the sequence.
        preparation = len(info.op.operands) == 1 and FREE in available[0]
        if not preparation and not info.rule.flops:
            return found
        hints = self.chooser.hints(self.function.sym_name.data)
        wanted: set[tuple[int, int | None]] = set(
            self.chooser.hinted_factors(info, hints)
        )
        for i in starts:
            for dim in info.rule.operands[i]:
                for factor in dim:
                    found.setdefault((factor, None), set())
                    for hinted, run in wanted:
                        if hinted == factor:
                            found.setdefault((factor, run), set())
        return found

    def _move(
        self,
        value: SSAValue,
        available: Available,
        target: Placement,
        size: float,
        *,
        may_slice: bool = False,
    ) -> float:
        """The price of having an operand placed as an op needs it; inf if never."""
        if target in available:
            return 0.0
        if FREE in available:
            return inf if target.kind == "partial" else 0.0
        if value in self.late:
            available = frozenset(p for p in available if p.kind != "partial")
        parts = self.chooser.parts
        prices = [inf]
        for source in available:
            match source.kind, target.kind:
                case "whole", "split":
                    if may_slice or value in self.derived:
                        prices.append(0.0)
                case "split", "whole":
                    prices.append(gather_price(size, parts))
                case "split", "split":
                    prices.append(gather_price(size, parts) / parts)
                case "partial", "whole":
                    prices.append(reduce_price(size, parts))
                case "partial", "split":
                    if may_slice:
                        prices.append(reduce_price(size, parts) / 2)
                case _:
                    pass
        return min(prices)

    def _settled(
        self, user: OpCandidates, index: int, available: Available
    ) -> tuple[Placement, float]:
        """
        How an operand crosses a function boundary at a call or return: as it is, but
        never partial.
        """
        if WHOLE in available:
            return WHOLE, 0.0
        if FREE in available:
            return FREE, 0.0
        size, parts = user.operand_bytes[index], self.chooser.parts
        splits = (p for p in available if p.kind == "split")
        for placement in sorted(splits, key=str):
            fitting = user.fitting(index, placement)
            if fitting is not None:
                return fitting, 0.0
        prices = {"split": gather_price, "partial": reduce_price}
        return WHOLE, min(prices[p.kind](size, parts) for p in available)

    def _call(
        self, op: CallOp, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        info = self.chooser.info(op)
        price = 0.0
        keys: list[ArgumentKey] = []
        for i, placements in enumerate(available):
            placement, cost = self._settled(info, i, placements)
            price += cost
            source = self.derived.get(op.operands[i], "activation")
            keys.append((placement, source))
        for callee in self.chooser.solve(op.callee.string_value(), keys):
            choice = OpChoice(op, callee.arguments, callee.results, callee=callee)
            yield choice, price + callee.cost

    def _constrained(
        self, op: ConstrainOp, available: Available
    ) -> Iterable[tuple[OpChoice, float]]:
        if not op.fixes(self.chooser.axis):
            for placement in available:
                placement = WHOLE if placement == FREE else placement
                yield OpChoice(op, (placement,), (placement,)), 0.0
            return
        info = self.chooser.info(op)
        target = placement_in(op.layout.data, self.chooser.axis)
        if target.kind == "partial":
            raise DistIRError(
                f"dist.constrain cannot ask for a value that is partial over "
                f"{self.chooser.axis!r}; constrain a reduced or split layout"
            )
        price = self._move(
            op.source, available, target, info.operand_bytes[0], may_slice=True
        )
        yield OpChoice(op, (target,), (target,)), price

    def _finish(
        self,
        op: ReturnOp,
        states: dict[State, _Node],
        arguments: Sequence[ArgumentKey],
    ) -> list[FunctionChoice]:
        best: dict[tuple[Placement, ...], FunctionChoice] = {}
        for state, node in sorted(states.items(), key=lambda item: item[1].cost):
            if (
                self.is_entry
                and best
                and node.cost >= min(c.cost for c in best.values())
            ):
                break
            available = [state[self.slots[value]] for value in op.operands]
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
            self._conversion(size, frozenset([have]), frozenset([want]))
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
                total += self._move(
                    value,
                    placements,
                    placement,
                    info.operand_bytes[i],
                    may_slice=True,
                )
            elif only_partial and not self.is_entry:
                placement = min(placements)
            else:
                placement, price = self._settled(info, i, placements)
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
