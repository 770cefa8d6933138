"""
The costs of moving values from the placement in which they are computed to the
placements in which they are used.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from distir.dialects.dist import ConstrainOp
from distir.planning.axes.alternatives import (
    Alternative,
    Available,
    OpAlternative,
    Source,
    Take,
    ValueAlternative,
)
from distir.planning.axes.axis_op import AxisOp
from distir.planning.axes.policy import AxisPolicy
from distir.planning.costs.unit import PREFERENCE
from distir.planning.graph.nodes import Edge, Floats, Node, Port
from distir.planning.graph.strategies import SplitFactor
from distir.sharding.placement import (
    REPLICATED,
    PartialPlacement,
    Placement,
    SplitPlacement,
)


class Taken(NamedTuple):
    """
    The edge from a value to an op that takes the value.

    - `node`: the node of the op;
    - `info`: the strategies of the op on the axis;
    - `operand`: the index of the operand;
    - `position`: the position of this use among all uses of the value, or -1 if no use
      cuts a part out of the value;
    - `is_first`: whether the value is a parameter and this is its first use;
    - `late`: whether the value's partial sums are reduced late;
    - `source`: whether the value is computed from parameters, constants or activations.
    """

    node: Node[OpAlternative]
    info: AxisOp
    operand: int
    position: int
    is_first: bool
    late: bool
    source: Source


class Passed(NamedTuple):
    """
    The edge from a value to an argument of a called function.

    - `node`: the node of the argument;
    - `info`, `operand`: the call's strategies on the axis, and the index of the operand;
    - `position`: the position of this use among all uses of the value, or -1 if no use
      cuts a part out of the value;
    - `is_first`: whether the value is a parameter and this is its first use.
    """

    node: Node[ValueAlternative]
    info: AxisOp
    operand: int
    position: int
    is_first: bool


class Kept(NamedTuple):
    """
    The edge from a value to the node that chooses the placements in which the value is
    kept. The value is always computed in the first of these placements.
    """

    node: Node[ValueAlternative]


class Returned(NamedTuple):
    """
    The edge from a value to a result of its function. `uses` is the number of uses of
    the value in the function.
    """

    node: Node[ValueAlternative]
    info: AxisOp
    result: int
    uses: int


class Replaced(NamedTuple):
    """
    The edge from a result of the program to the argument that the result replaces in
    the next step.
    """

    node: Node[ValueAlternative]
    info: AxisOp
    result: int


class Leaving(NamedTuple):
    """The edge from a result of the program to the caller of the program."""

    node: Node[ValueAlternative]
    info: AxisOp
    result: int


ValueUse = Taken | Passed | Kept | Returned | Replaced | Leaving


def availability_of(port: Port[Alternative]) -> list[Available]:
    """
    Returns the placements in which a value is available, under each alternative of its
    node.
    """
    return [s.available(port.result) for s in port.node.strategies]


class EdgeCosts:
    """
    Computes the cost matrices of edges, each only once. A matrix has one row per
    alternative of the source and one column per alternative of the target.
    """

    def __init__(self, policy: AxisPolicy):
        self.policy = policy
        self.costs = policy.program.costs
        self.parts = policy.program.mesh.size(policy.program.axis)
        self._matrices: dict[Hashable, Floats | None] = {}

    def cost(self, edge: Edge[Alternative, ValueUse]) -> Floats | None:
        """Returns the cost matrix of an edge, or None if all costs are zero."""
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

    def _cost(self, port: Port[Alternative], use: ValueUse) -> Floats:
        match use:
            case Taken():
                return self._taken(port, use)
            case Passed():
                return self._passed(port, use)
            case Kept(node):
                rows = [
                    [0.0 if s.placement == have else inf for s in node.strategies]
                    for (have, *_) in availability_of(port)
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
                    for w in availability_of(port)
                ]
            case Leaving(_, info, index):
                rows = [[self._left(info, index, w)] for w in availability_of(port)]
        return np.array(rows)

    def size(self, info: AxisOp, operand: int, source: Source) -> float:
        """
        Returns the bytes of an operand that are moved to its op. If the operand is a
        parameter (`source`), the result covers only the part that later axes leave on a
        device.
        """
        size = info.moved_bytes[operand]
        return size / self.policy.program.later_parts if source == "parameter" else size

    def move(self, have: Placement, want: Placement, size: float) -> float:
        """
        Returns the cost of moving a value from placement `have` to placement `want`.
        `size` is the size in bytes of the value on one device before this axis splits
        it.
        """
        return self.costs.move(have, want, size, self.parts)

    def availability(
        self, port: Port[Alternative], position: int
    ) -> list[tuple[Available, Placement | None]]:
        """
        Returns a pair for each alternative of a value's node. The first element holds
        the placements in which the value is available to its use at `position`. The
        second element is the placement of the part that this use must cut out of the
        value, or None if the use cuts no part.
        """
        found: list[tuple[Available, Placement | None]] = []
        for s in port.node.strategies:
            way = s.available(port.result)
            cut = s.cut if isinstance(s, ValueAlternative) else None
            if cut is None or position < cut.use:
                found.append((way, None))
            elif position == cut.use:
                found.append((way, cut.placement))
            else:
                found.append(((*way, cut.placement), None))
        return found

    def returned(
        self, port: Port[Alternative], info: AxisOp, result: int, uses: int
    ) -> list[dict[Placement, float]]:
        """
        Returns, for each alternative of a value's node, the placements in which the
        value may leave its function, with the cost of each. The value is result
        `result` of the op described by `info`, and has `uses` uses in the function.
        """
        return [
            self.leaving(info, result, way) for way, _ in self.availability(port, uses)
        ]

    def _taken(self, port: Port[Alternative], use: Taken) -> Floats:
        """
        Returns the cost matrix of moving a value to an op. Rows are the alternatives of
        the value, columns the alternatives of the op.
        """
        index, strategies = use.operand, use.node.strategies
        size = self.size(use.info, use.operand, use.source)
        gradient = 0.0
        if self.policy.is_forward and use.source == "parameter":
            gradient = self.costs.gradient(use.info.flops, self.parts)
        columns: dict[tuple[Placement, Take, bool], int] = {}
        where: list[int] = []
        for own, takes, _ in strategies:
            splits = isinstance(own.options[0], SplitFactor)
            column = own.operands[index], takes[index], splits
            where.append(columns.setdefault(column, len(columns)))
        rows: dict[tuple[Available, Placement | None], int] = {}
        from_ = [
            rows.setdefault(w, len(rows)) for w in self.availability(port, use.position)
        ]
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
                if (
                    gradient
                    and splits
                    and isinstance(want, SplitPlacement)
                    and want != have[0]
                ):
                    small[a, b] += gradient
        if type(use.info.op) is ConstrainOp:
            # Of equal plans, prefer communication where a placement was requested.
            small *= 1 - PREFERENCE
        return small[np.ix_(from_, where)]

    def _passed(self, port: Port[Alternative], use: Passed) -> Floats:
        """
        Returns the cost matrix of passing a value to a function. The value is passed in
        a placement in which it is available; a partial value is reduced first.
        """
        size = use.info.moved_bytes[use.operand]
        wanted = [s.placement for s in use.node.strategies]
        rows: list[list[float]] = []
        for w, part in self.availability(port, use.position):
            assert part is None
            prices: dict[Placement, float] = {}
            if use.is_first:
                # A parameter without a use so far is placed as the callee uses it.
                rows.append([0.0 if q == w[0] else inf for q in wanted])
                continue
            for p in w:
                if p is REPLICATED:
                    prices[REPLICATED] = 0.0
                elif isinstance(p, PartialPlacement):
                    price = self.move(p, REPLICATED, size)
                    prices[REPLICATED] = min(prices.get(REPLICATED, inf), price)
                else:
                    fitting = use.info.fitting(use.operand, p)
                    if fitting is not None:
                        prices[fitting] = 0.0
            if not prices:
                prices[REPLICATED] = min(self.move(p, REPLICATED, size) for p in w)
            rows.append([prices.get(q, inf) for q in wanted])
        return np.array(rows)

    def take(
        self,
        have: Available,
        want: Placement,
        take: Take,
        size: float,
        late: bool,
        source: Source,
    ) -> float:
        if take is Take.GATHERED and any(isinstance(p, SplitPlacement) for p in have):
            return inf
        if want in have:
            return 0.0
        if take is Take.AS_IS:
            return inf
        best = inf
        for p in have:
            if late and isinstance(p, PartialPlacement):
                continue
            cuts = take is not Take.MOVED or source != "activation"
            if p is REPLICATED and isinstance(want, SplitPlacement) and not cuts:
                continue
            if (
                isinstance(p, PartialPlacement)
                and isinstance(want, SplitPlacement)
                and take is Take.MOVED
            ):
                continue
            best = min(best, self.move(p, want, size))
        return best

    def leaving(
        self, info: AxisOp, index: int, available: Sequence[Placement]
    ) -> dict[Placement, float]:
        """
        Returns the placements in which a value may leave its function as result
        `index`, with the cost of each. A value that is available whole leaves whole.
        Any other value leaves in a split that fits the axes planned before this one. If
        no split fits, a value that is available only as partial values leaves partial.
        A value that is also available in a split leaves whole, at the cost of moving
        it.
        """
        if REPLICATED in available:
            return {REPLICATED: 0.0}
        fitting = [
            info.fitting(index, p) for p in available if isinstance(p, SplitPlacement)
        ]
        found: dict[Placement, float] = {p: 0.0 for p in fitting if p is not None}
        partial = [p for p in available if isinstance(p, PartialPlacement)]
        if not found and len(partial) == len(available):
            found = dict.fromkeys(partial, 0.0)
        if not found:
            size = info.operand_bytes[index]
            found[REPLICATED] = min(self.move(p, REPLICATED, size) for p in available)
        return found

    def _left(self, info: AxisOp, index: int, available: Available) -> float:
        """
        Returns the cost of handing result `index` of the program to the caller, if the
        result is available in the placements `available`.
        """
        size, best = info.operand_bytes[index], inf
        for p, price in self.leaving(info, index, available).items():
            if isinstance(p, PartialPlacement) or (
                isinstance(p, SplitPlacement)
                and self.policy.split_parameters
                and not self.policy.leaves_split
            ):
                price = self.move(p, REPLICATED, size)
            best = min(best, price)
        return best
