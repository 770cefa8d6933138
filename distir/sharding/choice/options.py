"""What an op can do given the ways in which its operands are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING

from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.errors import DistIRError
from distir.sharding.choice.candidates import Candidate, OpCandidates
from distir.sharding.choice.choices import ArgumentKey, OpChoice, Source
from distir.sharding.choice.placement import FREE, WHOLE, Placement, placement_in
from distir.sharding.choice.prices import gather_price, move_price, reduce_price
from distir.sharding.choice.states import Available

if TYPE_CHECKING:
    from distir.sharding.choice.chooser import AxisChooser

REQUESTED = -1
"""Stands for a request among the operands that support a split."""


class OpOptions:
    """The choices for the ops of one function, with their prices."""

    def __init__(self, chooser: AxisChooser, function: str):
        self.chooser = chooser
        self.function = function
        self.derived: dict[SSAValue, Source] = {}
        """Values that follow from parameters and constants alone."""
        self.requested: set[SSAValue] = set()
        """Those among them that come split already, not by this choice."""
        self.late = chooser.late(function)
        """Values whose partial sums are not reduced here."""

    def add_argument(self, value: SSAValue, key: ArgumentKey) -> None:
        """Records what an argument comes as."""
        placement, source = key
        if source != "activation":
            self.derived[value] = source
            if placement.kind == "split":
                self.requested.add(value)

    def derive(self, op: Operation) -> None:
        """Records what an op's results are computed from."""
        sources = {self.derived.get(v, "activation") for v in op.operands}
        if "activation" in sources or isinstance(op, CallOp):
            return
        source: Source = "parameter" if "parameter" in sources else "constant"
        for result in op.results:
            self.derived[result] = source
            if any(v in self.requested for v in op.operands):
                self.requested.add(result)

    def of(
        self, op: Operation, available: tuple[Available, ...]
    ) -> list[tuple[OpChoice, float]]:
        """
        The choices for an op whose operands are there in those ways. They may be of an op
        that is like it; `OpChoice.on` makes them its own.
        """
        if isinstance(op, ConstrainOp):
            return list(self._constrained(op, available[0]))
        key = self._key(op, available)
        found = self.chooser.priced.get(key)
        if found is None:
            choices = (
                self._call(op, available)
                if isinstance(op, CallOp)
                else self._compute(op, available)
            )
            found = self.chooser.priced[key] = list(choices)
        return found

    def _key(
        self, op: Operation, available: tuple[Available, ...]
    ) -> tuple[object, ...]:
        """All that the choices for an op depend on."""
        hints: Mapping[SSAValue, set[Placement]] = {}
        if self.chooser.split_parameters:
            hints = self.chooser.hints(self.function)
        wishes = self.chooser.wishes
        return (
            self.chooser.info(op),
            available,
            *[
                (self.derived.get(v), v in self.requested, v in self.late)
                for v in op.operands
            ],
            *[
                (frozenset(hints.get(r, ())), frozenset(wishes.get(r, ())))
                for r in op.results
            ],
        )

    def _compute(
        self, op: Operation, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        info = self.chooser.info(op)
        for key, support in self._supported(op, available).items():
            candidate = info.candidate(*key)
            if candidate is None or self._is_foreign(op, key[0]):
                continue
            price = candidate.work + self._gradient_price(op, available, candidate)
            for i, target in enumerate(candidate.operands):
                price += self.move(
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
        yield from self._partial(op, available)

    def _gradient_price(
        self, op: Operation, available: tuple[Available, ...], candidate: Candidate
    ) -> float:
        """
        Of a contraction that cuts its part out of a parameter that every device has: in the
        backward all of them will compute the gradient of the whole.
        """
        info, parts = self.chooser.info(op), self.chooser.parts
        if not self.chooser.is_forward or candidate.factor is None:
            return 0.0
        cut = any(
            self.derived.get(v) == "parameter"
            and target.kind == "split"
            and FREE not in have
            and target not in have
            for v, have, target in zip(
                op.operands, available, candidate.operands, strict=True
            )
        )
        return info.flops * (1 - 1 / parts) if cut else 0.0

    def _is_foreign(self, op: Operation, factor: int | None) -> bool:
        """
        Whether a split is not what an axis for parameters is there for: a contraction
        with a parameter splits along a dimension of the parameter; one of activations
        alone (attention scores) is not turned into partial sums.
        """
        info = self.chooser.info(op)
        if factor is None or not self.chooser.split_parameters or not info.rule.flops:
            return False
        parameters = [
            i for i, v in enumerate(op.operands) if self.derived.get(v) == "parameter"
        ]
        if parameters:
            return not any(
                factor in dim for i in parameters for dim in info.rule.operands[i]
            )
        return info.rule.factors[factor].kind == "reduction" and not any(
            v in self.derived for v in op.operands
        )

    def _partial(
        self, op: Operation, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        """Letting partial values pass through, where the rule is linear in them."""
        info = self.chooser.info(op)
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
                    self.move(op.operands[i], available[i], p, info.operand_bytes[i])
                    for i, p in enumerate(operands)
                )
                if price < inf:
                    results = (partial,) * len(op.results)
                    yield OpChoice(op, operands, results), price

    def _supported(
        self, op: Operation, available: tuple[Available, ...]
    ) -> dict[tuple[int | None, int | None], set[int]]:
        """
        The factors (with runs) worth trying and the operands that suggest each: those
        already split that way, and, where parameters may start a split, those derived
        from parameters. A suggestion by an activation or by a requested split lets
        whole operands be sliced; a split chosen for a parameter here does not.
        """
        info = self.chooser.info(op)
        found: dict[tuple[int | None, int | None], set[int]] = {(None, None): set()}
        starts: list[int] = []
        activations = [
            any(p.kind == "split" for p in placements)
            and op.operands[i] not in self.derived
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
                        value = op.operands[i]
                        if value not in self.derived or value in self.requested:
                            support.add(i)
                elif placement.kind == "free" or (
                    placement.kind == "whole"
                    and self.chooser.split_parameters
                    and self.derived.get(op.operands[i]) == "parameter"
                ):
                    starts.append(i)
        for key in self.chooser.hinted_factors(op, self.chooser.wishes):
            found.setdefault(key, set()).add(REQUESTED)
        if not starts:
            return found
        # A split starts where a parameter meets a contraction, or before that where an
        # undecided parameter is prepared for one (transposed, cast), or where rows of one
        # are looked up (each device has some of the rows). Added to an activation (a bias,
        # a table of positions) a parameter only follows: else it would split the sequence.
        preparation = len(op.operands) == 1 and FREE in available[0]
        starts_all = preparation or info.rule.flops
        hints = self.chooser.hints(self.function)
        wanted: set[tuple[int, int | None]] = set(
            self.chooser.hinted_factors(op, hints)
        )
        for i in starts:
            for dim in info.rule.operands[i]:
                for factor in dim:
                    if not starts_all and info.rule.factors[factor].kind != "reduction":
                        continue
                    found.setdefault((factor, None), set())
                    for hinted, run in wanted:
                        if hinted == factor:
                            found.setdefault((factor, run), set())
        return found

    def move(
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
                case "partial", "split":
                    if may_slice:
                        prices.append(reduce_price(size, parts) / 2)
                case _:
                    prices.append(move_price(source.kind, target.kind, size, parts))
        return min(prices)

    def settled(
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
            placement, cost = self.settled(info, i, placements)
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
        price = self.move(
            op.source, available, target, info.operand_bytes[0], may_slice=True
        )
        yield OpChoice(op, (target,), (target,)), price
