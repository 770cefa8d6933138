"""What it costs that values come from where they are made to where they are used."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from distir.dialects.dist import ConstrainOp
from distir.planning.axes.alternatives import (
    Alternative,
    OpAlternative,
    Source,
    Take,
    ValueAlternative,
    Ways,
)
from distir.planning.axes.axis_op import AxisOp
from distir.planning.axes.policy import AxisPolicy
from distir.planning.graph import Edge, Floats, Node, Port
from distir.planning.unit_costs import PREFERENCE
from distir.sharding.placement import WHOLE, Placement


class Taken(NamedTuple):
    """
    An op takes a value.

    - `node`: of the op; `info`: what the axis can do to it; `operand`: which one of its
      operands it is;
    - `place`: among all uses of a value whose uses make parts of it, else -1;
    - `is_first`: whether it is a parameter that nothing has used before;
    - `late`: whether the value's sums are reduced later; `source`: what it is computed from.
    """

    node: Node[OpAlternative]
    info: AxisOp
    operand: int
    place: int
    is_first: bool
    late: bool
    source: Source


class Passed(NamedTuple):
    """
    A call passes a value on, to an argument of the function that is called, whose node it
    is; the rest as in `Taken`.
    """

    node: Node[ValueAlternative]
    info: AxisOp
    operand: int
    place: int
    is_first: bool


class Kept(NamedTuple):
    """A value is held in ways of which the first one is that in which it is made."""

    node: Node[ValueAlternative]


class Returned(NamedTuple):
    """A value leaves its function, after so many uses in it."""

    node: Node[ValueAlternative]
    info: AxisOp
    result: int
    uses: int


class Replaced(NamedTuple):
    """A result of the program replaces an argument in the next step."""

    node: Node[ValueAlternative]
    info: AxisOp
    result: int


class Leaving(NamedTuple):
    """A result of the program goes to whoever runs it."""

    node: Node[ValueAlternative]
    info: AxisOp
    result: int


Move = Taken | Passed | Kept | Returned | Replaced | Leaving


def ways_of(port: Port[Alternative]) -> list[Ways]:
    """The placements in which a value is there under each alternative."""
    return [s.ways(port.result) for s in port.node.strategies]


class Moves:
    """
    The costs of edges, each found once: one row for each way in which a value may be there,
    one column for each alternative of the node that uses it.
    """

    def __init__(self, policy: AxisPolicy):
        self.policy = policy
        self.costs = policy.program.costs
        self.parts = policy.program.mesh.size(policy.program.axis)
        self._matrices: dict[Hashable, Floats | None] = {}

    def cost(self, edge: Edge[Alternative, Move]) -> Floats | None:
        """
        The costs of an edge for each pair of alternatives; None if it never costs
        anything.
        """
        port, use = edge
        key = (
            port.node.strategies,
            port.result,
            type(use),
            use.node.strategies,
            *use[1:],
        )
        if key not in self._matrices:
            matrix = self._cost(port, use)
            self._matrices[key] = matrix if matrix.any() else None
        return self._matrices[key]

    def _cost(self, port: Port[Alternative], use: Move) -> Floats:
        match use:
            case Taken():
                return self._taken(port, use)
            case Passed():
                return self._passed(port, use)
            case Kept(node):
                rows = [
                    [0.0 if s.placement == have else inf for s in node.strategies]
                    for (have, *_) in ways_of(port)
                ]
            case Returned(node, info, result, uses):
                rows = [
                    [row.get(s.placement, inf) for s in node.strategies]
                    for row in self.returned(port, info, result, uses)
                ]
            case Replaced(node, info, index):
                size = info.operand_bytes[index]
                rows = [
                    [
                        self.take(w, s.placement, Take.CUT, size, False, "activation")
                        for s in node.strategies
                    ]
                    for w in ways_of(port)
                ]
            case Leaving(_, info, index):
                rows = [[self._left(info, index, w)] for w in ways_of(port)]
        return np.array(rows)

    def size(self, info: AxisOp, operand: int, source: Source) -> float:
        """
        Bytes of an operand that come from elsewhere. Of a parameter they are as few as later
        axes will leave.
        """
        size = info.moved_bytes[operand]
        return size / self.policy.program.later_parts if source == "parameter" else size

    def move(self, have: Placement, want: Placement, size: float) -> float:
        """
        The cost of bringing a value of `size` bytes (whole on the axis) to another
        placement.
        """
        return self.costs.move(have, want, size, self.parts)

    def there(
        self, port: Port[Alternative], place: int
    ) -> list[tuple[Ways, Placement | None]]:
        """
        How a value is there for its use at that place, under each alternative, and what part
        this use has to make of it.
        """
        found: list[tuple[Ways, Placement | None]] = []
        for s in port.node.strategies:
            way = s.ways(port.result)
            cut = s.cut if isinstance(s, ValueAlternative) else None
            if cut is None or place < cut.use:
                found.append((way, None))
            elif place == cut.use:
                found.append((way, cut.placement))
            else:
                found.append(((*way, cut.placement), None))
        return found

    def returned(
        self, port: Port[Alternative], info: AxisOp, result: int, uses: int
    ) -> list[dict[Placement, float]]:
        """
        How a value may leave its function under each alternative, after so many uses in it,
        and what that costs.
        """
        return [self.leaving(info, result, way) for way, _ in self.there(port, uses)]

    def _taken(self, port: Port[Alternative], use: Taken) -> Floats:
        """What it costs that a value comes to an op in the placement that it wants."""
        index, strategies = use.operand, use.node.strategies
        size = self.size(use.info, use.operand, use.source)
        gradient = 0.0
        if self.policy.is_forward and use.source == "parameter":
            gradient = self.costs.gradient(use.info.flops, self.parts)
        columns: dict[tuple[Placement, Take, bool], int] = {}
        where: list[int] = []
        for own, takes, _ in strategies:
            splits = own.options[0].factor is not None
            column = own.operands[index], takes[index], splits
            where.append(columns.setdefault(column, len(columns)))
        rows: dict[tuple[Ways, Placement | None], int] = {}
        from_ = [rows.setdefault(w, len(rows)) for w in self.there(port, use.place)]
        small = np.zeros((len(rows), len(columns)))
        for (have, part), a in rows.items():
            for (want, take, splits), b in columns.items():
                if part is not None and (want != part or take is not Take.CUT):
                    small[a, b] = inf
                    continue
                if use.is_first:
                    # A parameter is stored as its first user takes it.
                    small[a, b] = 0.0 if want == have[0] else inf
                    continue
                small[a, b] = self.take(have, want, take, size, use.late, use.source)
                if gradient and splits and want.kind == "split" and want != have[0]:
                    small[a, b] += gradient
        if isinstance(use.info.op, ConstrainOp):
            # What is asked for is communicated where it is.
            small *= 1 - PREFERENCE
        return small[np.ix_(from_, where)]

    def _passed(self, port: Port[Alternative], use: Passed) -> Floats:
        """How a value comes to a function: as it is, but never partial."""
        size = use.info.moved_bytes[use.operand]
        wanted = [s.placement for s in use.node.strategies]
        rows: list[list[float]] = []
        for w, part in self.there(port, use.place):
            assert part is None
            prices: dict[Placement, float] = {}
            if use.is_first:
                # What nothing has used yet is placed as it is used in there.
                rows.append([0.0 if q == w[0] else inf for q in wanted])
                continue
            for p in w:
                if p.kind == "whole":
                    prices[WHOLE] = 0.0
                elif p.kind == "partial":
                    price = self.move(p, WHOLE, size)
                    prices[WHOLE] = min(prices.get(WHOLE, inf), price)
                else:
                    fitting = use.info.fitting(use.operand, p)
                    if fitting is not None:
                        prices[fitting] = 0.0
            if not prices:
                prices[WHOLE] = min(self.move(p, WHOLE, size) for p in w)
            rows.append([prices.get(q, inf) for q in wanted])
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
            best = min(best, self.move(p, want, size))
        return best

    def leaving(
        self, info: AxisOp, index: int, ways: Sequence[Placement]
    ) -> dict[Placement, float]:
        """
        How a value that is there in these ways may leave its function as a result, and what
        that costs: whole if it is, else in parts that fit what the axes before do, else
        partial, and whole if that is none of these.
        """
        if WHOLE in ways:
            return {WHOLE: 0.0}
        fitting = [info.fitting(index, p) for p in ways if p.kind == "split"]
        found = {p: 0.0 for p in fitting if p is not None}
        partial = [p for p in ways if p.kind == "partial"]
        if not found and len(partial) == len(ways):
            found = dict.fromkeys(partial, 0.0)
        if not found:
            size = info.operand_bytes[index]
            found[WHOLE] = min(self.move(p, WHOLE, size) for p in ways)
        return found

    def _left(self, info: AxisOp, index: int, ways: Ways) -> float:
        """What it costs to hand out a result of the program that is there like that."""
        size, best = info.operand_bytes[index], inf
        for p, price in self.leaving(info, index, ways).items():
            if p.kind == "partial" or (
                p.kind == "split" and self.policy.split_parameters
            ):
                price = self.move(p, WHOLE, size)
            best = min(best, price)
        return best
