"""Scores of nodes that are kept up to date while a graph is eliminated."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from distir.solver.elimination import Eliminated
from distir.solver.graph import CostGraph


def random_graph(seed: int, nodes: int = 24) -> CostGraph:
    rng = random.Random(seed)
    costs = {i: np.zeros(rng.randint(1, 6)) for i in range(nodes)}
    near: dict[int, dict[int, np.ndarray]] = {i: {} for i in range(nodes)}
    for i in range(nodes):
        for j in rng.sample(range(nodes), 3):
            if i != j:
                near[i][j] = np.zeros((len(costs[i]), len(costs[j])))
                near[j][i] = near[i][j].T
    return CostGraph(costs, near)


def added_entries(left: Eliminated, node: int) -> float:
    """The entries of tables that a node adds between its neighbours, counted anew."""
    around, sizes = left.near[node], left.sizes
    return sum(
        sizes[j] * sizes[k]
        for j in around
        for k in around
        if j != k and k not in left.near[j]
    )


@pytest.mark.parametrize("seed", range(4))
def test_scores_follow_from_edge_to_edge(seed: int) -> None:
    graph = random_graph(seed)
    left = Eliminated(graph, is_fill=True)
    tables = Eliminated(graph, is_fill=False)
    for node in random.Random(seed).sample(range(24), 24):
        known = {other: left.score(other) for other in left.near}
        changed = left.eliminate(node)
        tables.eliminate(node)
        assert tables.near == left.near
        for other in left.near:
            fill, table = left.score(other)
            assert fill == added_entries(left, other)
            assert table == math.prod(left.sizes[j] for j in left.near[other])
            assert tables.score(other) == (table, table)
            assert other in changed or known[other] == (fill, table)
