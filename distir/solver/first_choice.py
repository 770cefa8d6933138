"""
Finds a first choice quickly: decides one node after another, and after each decision
removes the alternatives that have become impossible.
"""

from __future__ import annotations

import numpy as np

from distir.solver.graph import CostGraph, replay
from distir.solver.problem import Costs
from distir.solver.reductions import NoAlternative, Reductions
from distir.solver.result import trivial_bound

# The weights of memory against cost, one per attempt. With weight 1, the whole memory
# capacity costs as much as all cheapest alternatives together.
WEIGHTS = (0.0, 0.1, 1.0, 10.0, 1e3)


def first_choice(graph: CostGraph) -> dict[int, int] | None:
    """
    Returns a choice that fits into memory, or None if a few attempts find none. The
    first attempt considers costs only, and later attempts weigh memory more and more.
    After the decision of a node, all alternatives that have become impossible are
    removed.
    """
    whole = max(abs(trivial_bound(graph)), 1.0)
    best: dict[int, int] | None = None
    for weight in WEIGHTS if graph.pieces else WEIGHTS[:1]:
        attempt = graph.copy(memory=True)
        try:
            fits = _dive(attempt, weight * whole)
        except NoAlternative:
            continue
        if not fits:
            continue
        choice = replay(attempt.steps, {})
        if not (graph.load(choice) > graph.capacity).any() and (
            best is None or graph.cost(choice) < graph.cost(best)
        ):
            best = choice
    return best


def _dive(graph: CostGraph, weight: float) -> bool:
    """
    Decides all nodes of a graph. Returns whether the choice keeps the memory limit.
    `weight` is the weight of memory compared with costs. Raises NoAlternative if a node
    has no possible alternative left.
    """
    reductions = Reductions(graph)
    reductions.run()
    # Memory points that no longer matter are removed only in small graphs, where it is
    # fast.
    follow = reductions.settle if len(graph.costs) <= 1000 else reductions.drain
    # Nodes whose second-best alternative costs the most more than the best are decided
    # first.
    regret = {i: _regret(_price(graph, i, weight)) for i in graph.costs}
    for node in sorted(regret, key=lambda i: -regret[i]):
        if node not in graph.costs:
            continue
        if graph.pieces and (graph.capacity < 0).any():
            return False
        best = int(_price(graph, node, weight).argmin())
        reductions.keep(node, np.arange(len(graph.costs[node])) == best)
        follow()
    return True


def _price(graph: CostGraph, node: int, weight: float) -> Costs:
    """
    Returns the price of each alternative of a node. The price is the sum of three
    terms: the cost of the alternative; for each neighbour, the least cost of the edge
    and the neighbour together; and `weight` times the share of memory that the
    alternative occupies.
    """
    price = graph.costs[node].copy()
    for j, matrix in graph.near[node].items():
        price += (matrix + graph.costs[j]).min(axis=1)
    pieces = graph.pieces.get(node)
    if weight and pieces is not None:
        capacity = np.maximum(graph.capacity, 1.0)
        share = np.array(
            [
                1 / capacity[s:e].min()
                for s, e in zip(pieces.first, pieces.last, strict=True)
            ]
        )
        price += weight * (share @ pieces.usage)
    return price


def _regret(price: Costs) -> float:
    """
    Returns the difference between the second-lowest and the lowest price in `price`.
    """
    return float(np.partition(price, 1)[1] - price.min()) if len(price) > 1 else 0.0
