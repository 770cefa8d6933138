"""Removes points of a memory limit that cannot decide anything."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distir.solver.graph import CostGraph, Pieces, Table
from distir.solver.problem import Costs


def forget_slack(graph: CostGraph) -> list[int]:
    """
    Removes the points whose capacity no choice can exceed, and those at which it is
    exceeded only if it is at another point too. Returns the nodes that occupy less
    afterwards.
    """
    if not len(graph.limit):
        return []
    most, begins, ends = _extremes(graph)
    capacity = graph.capacity
    # A point at which even nothing is too much stays, so that the answer is that nothing
    # fits.
    kept = np.greater(most, capacity) | np.less(capacity, 0)
    tight = np.flatnonzero(kept)
    kept[tight] = _strictest(
        capacity[tight], _between(begins, tight), _between(ends, tight)
    )
    if kept.all():
        return []
    number = np.concatenate([[0], np.cumsum(kept)])
    graph.limit = capacity[kept]
    graph.always = np.zeros(len(graph.limit) + 1)
    changed: list[int] = []
    for i, pieces in list(graph.pieces.items()):
        first, last = number[pieces.first], number[pieces.last]
        some = first < last
        if some.all():
            graph.pieces[i] = Pieces(first, last, pieces.usage)
            continue
        graph.set_pieces(i, Pieces(first[some], last[some], pieces.usage[some]))
        changed.append(i)
    return changed


def _extremes(graph: CostGraph) -> tuple[Costs, Table, Table]:
    """
    Returns, for each point of the program, the most that can be occupied, how many pieces
    begin there, and how many end before.
    """
    points = len(graph.limit)
    change = np.zeros(points + 1)
    begins, ends = np.zeros(points, np.int64), np.zeros(points + 1, np.int64)
    for pieces in graph.pieces.values():
        most = pieces.usage.max(axis=1)
        np.add.at(change, pieces.first, most)
        np.subtract.at(change, pieces.last, most)
        np.add.at(begins, pieces.first, 1)
        np.add.at(ends, pieces.last, 1)
    return np.cumsum(change)[:-1], begins, ends[:-1]


def _between(events: Table, kept: Table) -> Table:
    """
    Returns how many of the events at each point lie between a kept point and the one
    before.
    """
    return np.diff(np.cumsum(events)[kept], prepend=0)


def _strictest(capacity: Costs, begins: Table, ends: Table) -> npt.NDArray[np.bool_]:
    """
    Returns the points to keep: a point is dropped if all that is live there is also live at
    a neighbour with no more capacity. It works with a stack, as a neighbour's neighbour can
    become one.
    """
    stack: list[int] = []
    began: list[int] = []  # between a point on the stack and the one below it
    ended: list[int] = []
    for p in range(len(capacity)):
        begin, end = int(begins[p]), int(ends[p])
        while stack and not end and capacity[p] <= capacity[stack[-1]]:
            stack.pop()
            begin, end = begin + began.pop(), ended.pop()
        if stack and not begin and capacity[p] >= capacity[stack[-1]]:
            # What ended before this point ended before the next one too.
            if p + 1 < len(capacity):
                ends[p + 1] += end
            continue
        stack.append(p)
        began.append(begin)
        ended.append(end)
    kept = np.zeros(len(capacity), bool)
    kept[stack] = True
    return kept
