"""
The states of the dynamic program: what an axis does to each live value.

They are many, and every op compares them with each other, so they are rows of one matrix
of small numbers, a column for each live value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distir.sharding.choice.choices import OpChoice
from distir.sharding.choice.placement import FREE, Placement
from distir.sharding.choice.prices import move_price

Available = frozenset[Placement]
"""The ways in which a value is there already."""

NOTHING: Available = frozenset()
"""What a column holds that stands for no value."""

Integers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

MAX_STATES = 256
MAX_COMPARED = 8

_VARYING = -1


def conversion_price(
    size: float, have: Available, want: Available, parts: int
) -> float:
    """The price of having a value of that size in all the ways of another state."""
    if FREE in have:
        return 0.0
    price = 0.0
    for target in want:
        if target in have:
            continue
        moves = (move_price(p.kind, target.kind, size, parts) for p in have)
        price += min(moves, default=inf)
    return price


class Node(NamedTuple):
    """How a state was reached: its cost, the state before and what the op does."""

    cost: float
    parent: Node | None
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


class Option(NamedTuple):
    """
    What an op can do in some states: the choice, its price, and the columns that it
    changes with what they hold afterwards. All options of an op change the same columns.
    """

    choice: OpChoice
    price: float
    changes: Mapping[int, Available]


class States:
    """
    The states after some op, cheapest first. `sizes` has the bytes of the value in each
    column on one device, if the axis does not split it.

    Most columns hold the same in every state (what a program keeps from its forward for
    its backward, say). Only the others are in the matrix, so that what an op costs here
    grows with what is undecided and not with what is live.
    """

    def __init__(self, parts: int):
        self.parts = parts
        self.nodes: list[Node] = [Node(0.0, None, None)]
        self.sizes: list[float] = []
        self._common: list[int] = []
        """What all states hold in each column; `_VARYING` for columns of the matrix."""
        self._varying: list[int] = []
        """The columns that `_rows` has, in its order."""
        self._rows: Integers = np.zeros((1, 0), np.int32)
        self._known: list[Available] = []
        self._numbers: dict[Available, int] = {}
        self._unit_prices: Floats = np.zeros((0, 0))
        self._number(NOTHING)

    def _number(self, available: Available) -> int:
        number = self._numbers.get(available)
        if number is None:
            number = self._numbers[available] = len(self._known)
            self._known.append(available)
        return number

    def add_value(self, column: int, size: float, available: Available) -> None:
        """A value that is placed alike in every state."""
        self.resize(column, size)
        self._drop([column])
        self._common[column] = self._number(available)

    def resize(self, column: int, size: float) -> None:
        """Says how large the value is that a column, perhaps a new one, stands for."""
        while column >= len(self.sizes):
            self.sizes.append(0.0)
            self._common.append(self._number(NOTHING))
        self.sizes[column] = size

    def groups(self, columns: Sequence[int]) -> list[tuple[Available, ...]]:
        """What each state holds in those columns."""
        known, common = self._known, self._common
        if all(common[column] != _VARYING for column in columns):
            same = tuple([known[common[column]] for column in columns])
            return [same] * len(self.nodes)
        position = {column: i for i, column in enumerate(self._varying)}
        held = [
            self._rows[:, position[column]].tolist()
            if common[column] == _VARYING
            else [common[column]] * len(self.nodes)
            for column in columns
        ]
        return [
            tuple([known[number] for number in row]) for row in zip(*held, strict=True)
        ]

    def advance(
        self, groups: Sequence[int], options: Sequence[Sequence[Option]]
    ) -> None:
        """
        Follows every option of the group that each state belongs to; every op can do
        something (work on whole values). Of the states that
        this reaches, the cheapest `MAX_STATES` stay that are no other's equal and that
        none of the cheapest `MAX_COMPARED` reaches by communication, for no more: what
        such a state has moved already, that one can move when it is needed.
        """
        every = [option for group in options for option in group]
        if len(every) == 1:
            self._follow(every[0])
            return
        ends = np.cumsum([len(group) for group in options])
        members = [
            np.arange(end - len(g), end) for g, end in zip(options, ends, strict=True)
        ]
        chosen = np.concatenate([members[g] for g in groups])
        parents = np.repeat(
            np.arange(len(groups)), [len(options[group]) for group in groups]
        )
        before = np.array([node.cost for node in self.nodes])
        prices = np.array([option.price for option in every])
        costs = before[parents] + prices[chosen]
        # Cheapest first: the first way to reach a state is the best one.
        order = np.argsort(costs, kind="stable")
        costs, parents, chosen = costs[order], parents[order], chosen[order]
        after = {
            column: [self._number(option.changes[column]) for option in every]
            for column in every[0].changes
        }
        self._drop(after)
        rows = self._rows[parents]
        for column, numbers in after.items():
            if len(set(numbers)) == 1:
                self._common[column] = numbers[0]
                continue
            self._common[column] = _VARYING
            self._varying.append(column)
            rows = np.column_stack([rows, np.array(numbers, np.int32)[chosen]])
        kept = self._undominated(rows, costs)
        self.nodes = [
            Node(float(costs[i]), self.nodes[parents[i]], every[chosen[i]].choice)
            for i in kept
        ]
        self._keep(rows[kept])

    def _follow(self, option: Option) -> None:
        """Follows the only option there is in every state."""
        self._drop(option.changes)
        for column, available in option.changes.items():
            self._common[column] = self._number(available)
        self.nodes = [
            Node(node.cost + option.price, node, option.choice) for node in self.nodes
        ]
        if len(self.nodes) > 1:
            # What held the states apart may be gone.
            kept = self._undominated(
                self._rows, np.array([node.cost for node in self.nodes])
            )
            self.nodes = [self.nodes[i] for i in kept]
            self._keep(self._rows[kept])

    def _drop(self, columns: Iterable[int]) -> None:
        """Takes columns that are given new values out of the matrix."""
        dropped = [c for c in columns if self._common[c] == _VARYING]
        if dropped:
            kept = [i for i, c in enumerate(self._varying) if c not in dropped]
            self._varying = [self._varying[i] for i in kept]
            self._rows = self._rows[:, kept]

    def _keep(self, rows: Integers) -> None:
        """These rows from now on; columns in which they agree leave the matrix."""
        differ = (rows != rows[:1]).any(axis=0)
        for i in np.flatnonzero(~differ).tolist():
            self._common[self._varying[i]] = int(rows[0, i])
        self._varying = [c for c, d in zip(self._varying, differ, strict=True) if d]
        self._rows = np.ascontiguousarray(rows[:, differ])

    def _undominated(self, rows: Integers, costs: Floats) -> list[int]:
        """The rows to keep, of rows with ascending costs."""
        rows, sizes = self._merged(rows)
        alive = np.ones(len(rows), bool)
        kept: list[int] = []
        seen = set[bytes]()
        for i in range(len(rows)):
            key = rows[i].tobytes()
            if not alive[i] or key in seen:
                continue
            seen.add(key)
            kept.append(i)
            if len(kept) == MAX_STATES:
                break
            if len(kept) <= MAX_COMPARED:
                later = i + 1 + np.flatnonzero(alive[i + 1 :])
                spent = self._conversions(rows[i], rows[later], sizes)
                alive[later] = costs[later] - costs[i] < spent
        return kept

    def _merged(self, rows: Integers) -> tuple[Integers, Floats]:
        """
        The rows and the sizes of their columns, where columns that hold the same as each
        other in every row (the residuals of layers that are alike) are one.
        """
        sizes = np.array([self.sizes[column] for column in self._varying])
        first: dict[bytes, int] = {}
        columns = np.ascontiguousarray(rows.T)
        where = [first.setdefault(column.tobytes(), len(first)) for column in columns]
        if len(first) == len(where):
            return np.ascontiguousarray(rows), sizes
        kept = [where.index(i) for i in range(len(first))]
        return np.ascontiguousarray(rows[:, kept]), np.bincount(where, sizes).astype(
            np.float64
        )

    def _conversions(self, have: Integers, want: Integers, sizes: Floats) -> Floats:
        """The price of coming from one row to each of others."""
        where, column = np.nonzero(want != have)
        prices = self._prices()[have[column], want[where, column]]
        possible = prices != inf
        prices[possible] *= sizes[column[possible]]
        return np.bincount(where, prices, len(want)).astype(np.float64)

    def _prices(self) -> Floats:
        """Per byte, of coming from each way of having a value to each other."""
        count = len(self._unit_prices)
        if count < len(self._known):
            new = np.zeros((len(self._known),) * 2)
            new[:count, :count] = self._unit_prices
            for i, have in enumerate(self._known):
                for j, want in enumerate(self._known):
                    if i >= count or j >= count:
                        new[i, j] = conversion_price(1.0, have, want, self.parts)
            self._unit_prices = new
        return self._unit_prices
