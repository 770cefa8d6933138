"""Divides nodes into stages in the order of their indices, by dynamic programming."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distir.solver.stages.problem import TOLERANCE, Floats, StageProblem

Ints = npt.NDArray[np.int64]

HALVINGS = 60
"""The number of steps in the binary search for the least load of the busiest stage."""


class InOrder:
    """
    The divisions of a problem whose stages are stretches: runs of nodes with
    consecutive indices. If the nodes have no other order, these are all divisions. In a
    graph of parallel branches there are more divisions than these.

    A stretch `[start, end)` pays for every tensor from outside that one of its nodes
    needs. The cost of a division is thus the sum of the costs of its stretches. The
    cheapest division up to a node consists of its last stretch and the cheapest
    division, with one stage less, up to the start of that stretch. If stretches have at
    most n nodes, this takes n steps for each node and stage.
    """

    def __init__(self, problem: StageProblem):
        self.problem = problem
        self._loads = _sums(problem.loads)
        layers = np.zeros(problem.nodes)
        layers[list(problem.layer_nodes)] = 1
        count = _sums(layers)
        # For each node, the smallest end of a stretch from it that contains a layer.
        self._first_end: Ints = np.searchsorted(count, count + 0.5).astype(np.int64)
        self._last_in_memory = self._memory_ends()
        self._changes = _changes(problem)

    def cheapest(self, cap: float) -> list[int] | None:
        """
        Returns the stage of each node for the least communication with no load above
        `cap`, or None if there is no such division.
        """
        size, count = self.problem.nodes, self.problem.stages
        last_end = self._last_ends(cap)
        at, index, amount = self._changes
        first_change = np.searchsorted(at, np.arange(size + 1))
        price = np.full((count + 1, size + 1), np.inf)
        price[0, 0] = 0.0
        came = np.zeros((count + 1, size + 1), np.int64)
        arriving = np.zeros(size + 2)
        # The most stretches before each node such that the others suffice for the rest.
        most = np.minimum(count - self._least_stretches(cap), count - 1)
        for start in range(size):
            changed = slice(first_change[start], first_change[start + 1])
            np.add.at(arriving, index[changed], amount[changed])
            first, last = self._first_end[start], int(last_end[:, start].max())
            reached = np.flatnonzero(np.isfinite(price[: most[start] + 1, start]))
            if last < first or not len(reached):
                continue
            costs = np.cumsum(arriving[start + 1 : last + 1])[first - start - 1 :]
            rows, window = slice(reached[0], reached[-1] + 1), slice(first, last + 1)
            options = price[rows, start, None] + costs
            ends = np.arange(first, last + 1)
            options[ends > last_end[rows, start, None]] = np.inf
            after = slice(rows.start + 1, rows.stop + 1)
            better = options < price[after, window]
            np.copyto(price[after, window], options, where=better)
            came[after, window][better] = start
        if not np.isfinite(price[count, size]):
            return None
        stages = np.empty(size, np.int64)
        end = size
        for stage in range(count, 0, -1):
            start = int(came[stage, end])
            stages[start:end] = stage - 1
            end = start
        return stages.tolist()

    def least_cap(self) -> float | None:
        """
        Returns the least possible load of the busiest stage, or None if no division
        fits into memory.
        """
        low = max(self._loads[-1] / self.problem.stages, max(self.problem.loads))
        high = self._loads[-1]
        if not self._fits(high):
            return None
        if self._fits(low):
            return float(low)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._fits(middle):
                high = middle
            else:
                low = middle
        return float(high)

    def _fits(self, cap: float) -> bool:
        """Whether there is a division with no load above `cap`."""
        size = self.problem.nodes + 1
        reached = np.zeros(size, bool)
        reached[0] = True
        for last_end in self._last_ends(cap):
            starts = np.flatnonzero(reached[:-1] & (self._first_end[:-1] <= last_end))
            changes = np.zeros(size + 1, np.int64)
            np.add.at(changes, self._first_end[starts], 1)
            np.add.at(changes, last_end[starts] + 1, -1)
            reached = np.cumsum(changes[:size]) > 0
        return bool(reached[-1])

    def _least_stretches(self, cap: float) -> Ints:
        """
        Returns, for each node, a lower bound on the number of stretches that cover the
        nodes from this node to the last one. A stretch is a stage of nodes with
        consecutive indices.
        """
        left = self._loads[-1] - self._loads[:-1]
        if cap <= 0:
            return np.ones(len(left), np.int64)
        return np.ceil(left / cap * (1 - TOLERANCE) - TOLERANCE).astype(np.int64)

    def _last_ends(self, cap: float) -> Ints:
        """
        Returns an array [stage, start] with the last possible end of a stage whose
        first node is `start`. The load of the stage must be at most `cap`, and the
        stage must fit into memory.
        """
        allowed = cap * (1 + TOLERANCE)
        by_load = np.searchsorted(self._loads, self._loads[:-1] + allowed, "right") - 1
        return np.minimum(by_load, self._last_in_memory)

    def _memory_ends(self) -> Ints:
        """
        Returns an array [stage, start] with the last possible end of a stage whose
        first node is `start`. The stage must fit into memory.
        """
        problem, memory = self.problem, self.problem.memory
        ends = np.full((problem.stages, problem.nodes), problem.nodes, np.int64)
        if memory is None:
            return ends
        fixed, kept = _sums(memory.fixed), _sums(memory.kept)
        for stage, count in enumerate(memory.in_flight):
            held = fixed + count * kept
            allowed = held[:-1] + memory.limit * (1 + TOLERANCE)
            ends[stage] = np.searchsorted(held, allowed, "right") - 1
        return ends


def _sums(values: object) -> Floats:
    """Returns the prefix sums of `values`, starting with 0."""
    return np.concatenate(([0.0], np.cumsum(np.asarray(values, np.float64))))


def _changes(problem: StageProblem) -> tuple[Ints, Ints, Floats]:
    """
    Returns the costs of stretches (stages of consecutive nodes) as second differences,
    in three arrays `at`, `index` and `amount`. A stretch that begins at `at` or later
    and ends at `index` or later pays `amount` more. The arrays are sorted by `at`.
    """
    found: list[tuple[int, int, float]] = []

    def pay(first: int, last: int, least: int, most: int, cost: float) -> None:
        """
        Adds `cost` to the stretches that begin at `first` to `last` and end at `least`
        to `most`. A stretch is a stage of nodes with consecutive indices.
        """
        for at, sign in ((first, cost), (last + 1, -cost)):
            found.append((at, least, sign))
            found.append((at, most + 1, -sign))

    for tensor in problem.tensors:
        before, producer = -1, tensor.producer
        # The first consumer in a stretch pays for the others.
        for consumer in sorted(set(tensor.consumers)):
            if consumer > producer:
                first = max(before, producer) + 1
                pay(first, consumer, consumer + 1, problem.nodes, tensor.cost)
            elif consumer < producer:
                pay(before + 1, consumer, consumer + 1, producer, tensor.cost)
            before = consumer
    found.sort(key=lambda change: change[0])
    at, index, amount = zip(*found, strict=True) if found else ((), (), ())
    return np.array(at, np.int64), np.array(index, np.int64), np.array(amount, float)
