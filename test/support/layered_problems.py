"""Problems shaped like the training step of a deep model: the same layer again and again."""

from __future__ import annotations

import numpy as np

from distir.solver import Memory, Problem, solve

Edge = tuple[int, int]


class _Builder:
    def __init__(self) -> None:
        self.costs: list[np.ndarray] = []
        self.usages: list[np.ndarray] = []
        self.intervals: list[list[int]] = []
        self.edges: dict[Edge, np.ndarray] = {}

    def node(self, costs: np.ndarray, usage: np.ndarray) -> int:
        self.costs.append(costs)
        self.usages.append(usage)
        now = len(self.costs) - 1
        self.intervals.append([now, now + 1])
        return now

    def edge(self, i: int, j: int, matrix: np.ndarray) -> None:
        self.edges[i, j] = matrix
        self.intervals[i][1] = max(self.intervals[i][1], j + 1)


def layered_problem(
    layers: int,
    *,
    ops: int = 150,
    alternatives: int = 8,
    seed: int = 0,
    limit: float | None = None,
) -> Problem:
    """
    Returns a problem with a forward and a backward chain, a residual beside each, where the
    backward reads what the forward computed, and for each parameter a gradient and an
    optimizer's update. Alternatives are layouts: cheap to keep, expensive to change, in
    integer nanoseconds; every second one takes a quarter of the memory and a seventh more
    time. A layer has about 4.6 `ops` nodes and is the same in all layers. `limit` is the
    memory, as a fraction of what the cheapest choice takes.
    """
    random = np.random.default_rng(seed)
    build = _Builder()
    sizes = random.integers(1, 50, ops) * 1000
    compute = [
        random.permutation(np.linspace(1, 1.3, alternatives)) * size for size in sizes
    ]
    change = random.integers(2, 20, (alternatives, alternatives)).astype(float)
    np.fill_diagonal(change, 0)
    has_parameter = random.random(ops) < 0.4
    reads_back = random.random(ops) < 0.5
    # Some ops work in a few layouts only.
    allowed = random.random((ops, alternatives)) < 0.7
    allowed[:, 0] = True

    def op(k: int, factor: float) -> int:
        saves = np.arange(alternatives) % 2 == 0
        time = np.floor(compute[k] * factor * np.where(saves, 8 / 7, 1.0))
        costs = np.where(allowed[k], time, np.inf)
        share = np.where(saves, 0.25, 1.0)
        return build.node(costs, np.floor(sizes[k] * share))

    def link(i: int, j: int, k: int) -> None:
        build.edge(i, j, np.floor(change * sizes[k] / 10))

    forward: list[list[int]] = []
    parameters: list[dict[int, int]] = []
    last = residual = op(0, 1.0)
    for _ in range(layers):
        nodes: list[int] = []
        used: dict[int, int] = {}
        for k in range(ops):
            node = op(k, 1.0)
            link(last, node, k)
            if k % (ops // 2) == ops // 2 - 1 and residual != last:
                link(residual, node, k)
                residual = node
            if k > 8 and k % 9 == 0:  # as attention reads what three projections made
                build.edge(nodes[k - 8], node, np.floor(change * sizes[k] / 10))
            if has_parameter[k]:
                used[k] = node
            nodes.append(node)
            last = node
        forward.append(nodes)
        parameters.append(used)
    for nodes, used in zip(reversed(forward), reversed(parameters), strict=True):
        for k in reversed(range(ops)):
            node = op(k, 2.0)
            link(last, node, k)
            if reads_back[k]:
                link(nodes[k], node, k)
            if k % (ops // 2) == ops // 2 - 1 and residual != last:
                link(residual, node, k)
                residual = node
            if k in used:
                gradient = op(k, 1.0)
                link(node, gradient, k)
                link(nodes[k], gradient, k)
                before = gradient
                for _ in range(6):
                    update = op(k, 0.2)
                    link(before, update, k)
                    before = update
            last = node
    if limit is None:
        return Problem(build.costs, build.edges)
    intervals = [(a, b) for a, b in build.intervals]
    memory = Memory(build.usages, intervals, np.inf)
    problem = Problem(build.costs, build.edges, memory)
    free = problem.peak(solve(Problem(build.costs, build.edges)).choice)
    memory = Memory(build.usages, intervals, float(np.floor(limit * free)))
    return Problem(build.costs, build.edges, memory)
