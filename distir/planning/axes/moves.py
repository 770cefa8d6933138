"""What it costs that values come from where they are made to where they are used."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

import numpy as np

from distir.dialects.dist import ConstrainOp
from distir.planning.axes.axis_plan import Source
from distir.planning.axes.candidates import OpCandidates, Take
from distir.planning.axes.graph import Body, Floats, Node, Port, Use, Ways
from distir.planning.axes.policy import AxisPolicy
from distir.planning.unit_costs import PREFERENCE, UnitCosts
from distir.sharding.placement import WHOLE, Placement

Facts = tuple[bool, Source, bool]
"""
Of a use: whether the value's sums are reduced later, what it is computed from, and whether it
is a parameter that nothing has used before.
"""


class Moves:
    """
    The costs of edges, each found once: one row for each way in which a value may be there,
    one column for each alternative of the node that uses it.
    """

    def __init__(self, policy: AxisPolicy, costs: UnitCosts):
        self.policy = policy
        self.costs = costs
        self.info = policy.info
        self._matrices: dict[Hashable, Floats] = {}
        # Ways and strategies are known by their ids, so those that were seen must stay.
        self._kept: list[object] = []

    def edge(self, port: Port, place: int, use: Use, facts: Facts) -> Floats:
        """A value goes to its use at that place among all of its uses."""
        node, info = use.node, self.info(use.op)
        choices = id(node.strategies) if not use.is_call else id(node.ways[0])
        where = place if any(port.node.cuts) else -1
        key = (id(port.ways), choices, id(info), use.operand, use.is_call, facts, where)
        matrix = self._matrices.get(key)
        if matrix is None:
            self._kept.append((port.ways, node.strategies, node.ways))
            find = self._taken if not use.is_call else self._passed
            matrix = self._matrices[key] = find(port, place, use, info, facts)
        return matrix

    def made(self, port: Port, node: Node) -> Floats:
        """A value is held in ways of which the first one is that in which it is made."""
        key = ("made", id(port.ways), id(node.ways[0]))
        matrix = self._matrices.get(key)
        if matrix is None:
            self._kept.append((port.ways, node.ways))
            matrix = self._matrices[key] = np.array(
                [
                    [0.0 if w[0] == h[0] else inf for w in node.ways[0]]
                    for h in port.ways
                ]
            )
        return matrix

    def there(self, port: Port, place: int) -> list[tuple[Ways, Placement | None]]:
        """
        How a value is there for its use at that place, under each alternative, and what part
        this use has to make of it.
        """
        if not any(port.node.cuts):
            return [(w, None) for w in port.ways]
        found: list[tuple[Ways, Placement | None]] = []
        for way, cut in zip(port.ways, port.node.cuts, strict=True):
            if cut is None or place < cut.use:
                found.append((way, None))
            elif place == cut.use:
                found.append((way, cut.placement))
            else:
                found.append(((*way, cut.placement), None))
        return found

    def _taken(
        self,
        port: Port,
        place: int,
        use: Use,
        info: OpCandidates,
        facts: Facts,
    ) -> Floats:
        """What it costs that a value comes to an op in the placement that it wants."""
        index, strategies = use.operand, use.node.strategies
        size = info.operand_bytes[use.operand]
        late, source, first = facts
        gradient = 0.0
        if self.policy.is_forward and source == "parameter":
            gradient = self.costs.gradient(info)
        columns: dict[tuple[Placement, Take, bool], int] = {}
        where = [
            columns.setdefault(
                (s.operands[index], s.takes[index], s.option.factor is not None),
                len(columns),
            )
            for s in strategies
        ]
        rows: dict[tuple[Ways, Placement | None], int] = {}
        from_ = [rows.setdefault(w, len(rows)) for w in self.there(port, place)]
        small = np.zeros((len(rows), len(columns)))
        for (have, part), a in rows.items():
            for (want, take, splits), b in columns.items():
                if part is not None and (want != part or take is not Take.CUT):
                    small[a, b] = inf
                    continue
                if first:
                    # A parameter is stored as its first user takes it.
                    small[a, b] = 0.0 if want == have[0] else inf
                    continue
                small[a, b] = self.take(have, want, take, size, late, source)
                if gradient and splits and want.kind == "split" and want != have[0]:
                    small[a, b] += gradient
        if isinstance(use.op, ConstrainOp):
            # What is asked for is communicated where it is.
            small *= 1 - PREFERENCE
        return small[np.ix_(from_, where)]

    def _passed(
        self,
        port: Port,
        place: int,
        use: Use,
        info: OpCandidates,
        facts: Facts,
    ) -> Floats:
        """How a value comes to a function: as it is, but never partial."""
        size = info.operand_bytes[use.operand]
        rows: list[list[float]] = []
        for w, part in self.there(port, place):
            assert part is None
            prices: dict[Placement, float] = {}
            if facts[-1]:
                # What nothing has used yet is placed as it is used in there.
                rows.append([0.0 if q[0] == w[0] else inf for q in use.node.ways[0]])
                continue
            for p in w:
                if p.kind == "whole":
                    prices[WHOLE] = 0.0
                elif p.kind == "partial":
                    price = self.costs.move(p, WHOLE, size)
                    prices[WHOLE] = min(prices.get(WHOLE, inf), price)
                else:
                    fitting = info.fitting(use.operand, p)
                    if fitting is not None:
                        prices[fitting] = 0.0
            if not prices:
                prices[WHOLE] = min(self.costs.move(p, WHOLE, size) for p in w)
            rows.append([prices.get(q[0], inf) for q in use.node.ways[0]])
        return np.array(rows)

    def take(
        self,
        have: Ways,
        want: Placement,
        take: Take,
        size: float,
        late: bool,
        source: Source,
    ) -> float:
        if take is Take.GATHERED and any(p.kind == "split" for p in have):
            return inf
        if want in have:
            return 0.0
        if take is Take.AS_IS:
            return inf
        best = inf
        for p in have:
            if late and p.kind == "partial":
                continue
            cuts = take is not Take.MOVED or source != "activation"
            if p.kind == "whole" and want.kind == "split" and not cuts:
                continue
            if p.kind == "partial" and want.kind == "split" and take is Take.MOVED:
                continue
            best = min(best, self.costs.move(p, want, size))
        return best

    def leaving(
        self, body: Body, index: int, ways: Sequence[Placement]
    ) -> dict[Placement, float]:
        """
        How a value that is there in these ways may leave its function as a result, and what
        that costs: whole if it is, else in parts that fit what the axes before do, else
        partial, and whole if that is none of these.
        """
        if WHOLE in ways:
            return {WHOLE: 0.0}
        info = self.info(body.last)
        fitting = [info.fitting(index, p) for p in ways if p.kind == "split"]
        found = {p: 0.0 for p in fitting if p is not None}
        partial = [p for p in ways if p.kind == "partial"]
        if not found and len(partial) == len(ways):
            found = dict.fromkeys(partial, 0.0)
        if not found:
            size = info.operand_bytes[index]
            found[WHOLE] = min(self.costs.move(p, WHOLE, size) for p in ways)
        return found

    def result(self, body: Body, index: int, ways: Ways) -> float:
        """What it costs to hand out a result of the program that is there like that."""
        size, best = self.info(body.last).operand_bytes[index], inf
        for p, price in self.leaving(body, index, ways).items():
            if p.kind == "partial":
                price = self.costs.move(p, WHOLE, size)
            elif p.kind == "split" and self.policy.split_parameters:
                price = self.costs.result(p, size)
            best = min(best, price)
        return best
