"""
Dynamic programming over segments (Rhino's level O2, section 4.3.2): fast, but without a
proof of optimality.

Segments are decided one after another. Each segment is decided exactly, by elimination,
for every combination of alternatives of the critical nodes at the end of the segment.
This combination is called a *history*, because it records all choices so far. Edges
from a segment to earlier nodes have the costs that a history gives. An edge to a node
that is still undecided adds the least cost that it can have. Earlier segments are
decided without knowledge of later segments. Pairs of consecutive segments are therefore
decided again, exactly, with all other nodes fixed, until nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from distir.solver.clock import Clock
from distir.solver.elimination import eliminate, plan, take_out
from distir.solver.flow import Segments
from distir.solver.graph import CostGraph, replay
from distir.solver.memory.relaxed import optimum
from distir.solver.problem import Costs
from distir.solver.reductions import reduce
from distir.solver.result import ROUNDING, SolverResult

HISTORIES = 64
"""The largest number of histories that are kept after each segment."""

COMBINATIONS = 1 << 12
"""
The largest number of combinations of alternatives of the critical nodes at the end of a
segment.
"""

SEGMENT_WORK = 2e8
"""The largest number of additions and comparisons for a segment."""

_PAST = -1  # the node whose alternatives are histories

Choices = npt.NDArray[np.int64]


@dataclass
class _Decided:
    """
    The decisions so far. A history is a combination of alternatives of critical nodes.

    - `costs`: the cost of each history;
    - `choices[i]`: the alternative of node i in each history, for nodes with undecided
      neighbours;
    - `records`: for each segment, two facts about each of its histories: the history of
      the previous segment that it continues, and the alternatives of the segment's
      nodes.
    """

    costs: Costs
    choices: dict[int, Choices]
    records: list[tuple[Choices, dict[int, Choices]]]


def solve_by_segments(
    graph: CostGraph, clock: Clock, segments: Segments
) -> SolverResult:
    """
    Returns a good choice for a graph, without regard to memory. The nodes of `graph`
    are removed. If no segment-by-segment choice is possible, or segments are too large,
    the whole graph is solved at once. In all other cases the bound of the result is the
    cost of the choice, although a cheaper choice may exist.
    """
    if not reduce(graph):
        return SolverResult(None, math.inf, math.inf)
    choice = choose(graph, clock, segments)
    if choice is None:
        return optimum(graph, clock)
    cost = graph.cost(choice)
    return SolverResult(replay(graph.steps, choice), cost, cost)


def choose(graph: CostGraph, clock: Clock, segments: Segments) -> dict[int, int] | None:
    """
    Returns a good choice for a graph without regard to its memory limit. Returns None
    if the clock stops or no segment-by-segment choice is possible.
    """
    groups = [[i for i in group if i in graph.costs] for group in segments.groups]
    groups = [group for group in groups if group]
    decided = _Decided(np.array([graph.constant]), {}, [])
    waiting = set(graph.costs)
    for group in groups:
        waiting.difference_update(group)
        ends = _ends(graph, group, waiting, segments.critical)
        if clock.stopped or not _decide(graph, group, waiting, ends, decided, clock):
            return None
    best = int(decided.costs.argmin())
    choice: dict[int, int] = {}
    for parents, choices in reversed(decided.records):
        choice |= {i: int(column[best]) for i, column in choices.items()}
        best = int(parents[best])
    _swept(graph, groups, choice, clock)
    return choice


def _decide(
    graph: CostGraph,
    nodes: Sequence[int],
    waiting: set[int],
    ends: list[int],
    decided: _Decided,
    clock: Clock,
) -> bool:
    """
    Continues every history (the choices so far) through a segment. Returns whether any
    history could be continued. `nodes` are the nodes of the segment, `waiting` the
    undecided nodes after it, and `ends` its critical nodes.
    """
    part = _segment(graph, nodes, waiting, decided)
    while True:
        order = plan(part, SEGMENT_WORK, kept=(_PAST, *ends))
        if order.work <= SEGMENT_WORK:
            break
        if not ends:
            return False
        ends.pop()
    taken = take_out(part, order, (_PAST, *ends), clock)
    if taken is None:
        return False
    steps, table = taken
    best = table.min(axis=0).ravel()
    parents = table.argmin(axis=0).ravel()
    kept = np.argsort(best, kind="stable")[:HISTORIES]
    kept = kept[np.isfinite(best[kept])]
    if not len(kept):
        return False
    choices: dict[int, Choices] = {_PAST: parents[kept]}
    sizes = [len(graph.costs[i]) for i in ends]
    for i, column in zip(ends, np.unravel_index(kept, sizes or [1]), strict=False):
        choices[i] = column
    for step in reversed(steps):
        choices[step.node] = np.broadcast_to(
            step.table[tuple(choices[j] for j in step.nodes)], len(kept)
        ).astype(np.int64)
    parent = choices.pop(_PAST)
    known = {i: column[parent] for i, column in decided.choices.items()} | choices
    decided.choices = {
        i: column
        for i, column in known.items()
        if any(j in waiting for j in graph.near[i])
    }
    decided.costs = best[kept]
    decided.records.append((parent, choices))
    return True


def _segment(
    graph: CostGraph, nodes: Sequence[int], waiting: set[int], decided: _Decided
) -> CostGraph:
    """
    Returns the graph of a segment, with one extra node for the earlier segments. The
    alternatives of the extra node are the histories (choices so far). The edges of the
    extra node hold the costs that depend on the histories.
    """
    inside = set(nodes)
    costs = {i: graph.costs[i] for i in nodes}
    near: dict[int, dict[int, Costs]] = {_PAST: {}}
    for i in nodes:
        near[i] = {j: m for j, m in graph.near[i].items() if j in inside}
        past: Costs | None = None
        for j, matrix in graph.near[i].items():
            if j in waiting:
                costs[i] = costs[i] + _ahead(matrix, graph.costs[j])
        for j, matrix in graph.near[i].items():
            if j in decided.choices and j not in inside:
                ahead = _ahead(matrix.T, graph.costs[i])
                shifted = matrix - np.where(np.isfinite(ahead), ahead, 0.0)
                columns = shifted[:, decided.choices[j]]
                past = columns if past is None else past + columns
        if past is not None:
            near[i][_PAST] = past
            near[_PAST][i] = past.T
    costs[_PAST] = decided.costs
    return CostGraph(costs, near)


def _ahead(matrix: Costs, costs: Costs) -> Costs:
    """
    Returns, for each alternative of a node, a lower bound of the cost that an undecided
    neighbour adds: the least sum of the edge and of the neighbour's `costs`, minus the
    neighbour's least cost.
    """
    least = costs.min()
    return (matrix + costs).min(axis=1) - (least if np.isfinite(least) else 0.0)


def _ends(
    graph: CostGraph,
    nodes: Sequence[int],
    waiting: set[int],
    critical: frozenset[int],
) -> list[int]:
    """
    Returns those of the segment's nodes `nodes` that are critical and have undecided
    neighbours (`waiting`). Nodes are added only as long as their alternatives have few
    combinations.
    """
    found: list[int] = []
    combinations = 1
    for i in nodes:
        if i in critical and any(j in waiting for j in graph.near[i]):
            combinations *= len(graph.costs[i])
            if combinations > COMBINATIONS:
                break
            found.append(i)
    return found


def _swept(
    graph: CostGraph,
    groups: Sequence[Sequence[int]],
    choice: dict[int, int],
    clock: Clock,
) -> None:
    """
    Decides pairs of consecutive segments again, with all other nodes fixed, until
    nothing changes. After the first round, a pair is visited only if a node in it or
    next to it changed.
    """
    windows = [(*one, *next_) for one, next_ in pairwise(groups)]
    seen = [{*nodes, *(j for i in nodes for j in graph.near[i])} for nodes in windows]
    waiting = set(range(len(windows)))
    cost = math.inf
    while waiting and graph.cost(choice) < cost * (1 - ROUNDING) and not clock.stopped:
        cost = graph.cost(choice)
        now, waiting = sorted(waiting), set[int]()
        for window in now:
            part = _window(graph, windows[window], choice)
            order = plan(part, SEGMENT_WORK)
            if order.work > SEGMENT_WORK:
                continue
            found = eliminate(part, order, clock)
            if found is None or found.choice is None:
                continue
            changed = {i for i, a in found.choice.items() if choice[i] != a}
            choice.update(found.choice)
            waiting |= {i for i, nodes in enumerate(seen) if nodes & changed}
            waiting.discard(window)


def _window(
    graph: CostGraph, nodes: Sequence[int], choice: dict[int, int]
) -> CostGraph:
    """
    Returns the graph of the nodes `nodes`, with all other nodes fixed at the choice
    `choice`.
    """
    inside = set(nodes)
    costs: dict[int, Costs] = {}
    near: dict[int, dict[int, Costs]] = {}
    for i in nodes:
        costs[i], near[i] = graph.costs[i], {}
        for j, matrix in graph.near[i].items():
            if j in inside:
                near[i][j] = matrix
            else:
                costs[i] = costs[i] + matrix[:, choice[j]]
    return CostGraph(costs, near)
