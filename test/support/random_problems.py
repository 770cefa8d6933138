"""Random small problems, and their optimum by trying everything."""

from __future__ import annotations

import itertools

import numpy as np

from distir.solver import Memory, Problem


def random_problem(seed: int, *, memory: bool, integer: bool = True) -> Problem:
    """
    Returns a problem of at most 7 nodes with at most 5 alternatives; a third of the edges'
    entries are infinite.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 8))
    sizes = random.integers(1, 6, count)

    def costs(*shape: int) -> np.ndarray:
        drawn = random.integers(0, 12, shape).astype(float)
        if not integer:
            drawn += random.random(shape)
        return drawn

    nodes = [costs(size) for size in sizes]
    for node in nodes:
        node[random.random(len(node)) < 0.05] = np.inf
    edges: dict[tuple[int, int], np.ndarray] = {}
    share = random.choice([0.3, 0.6, 0.9])
    impossible = random.choice([0.0, 0.2, 0.5])
    for i, j in itertools.combinations(range(count), 2):
        if random.random() < share:
            matrix = costs(sizes[i], sizes[j])
            matrix[random.random(matrix.shape) < impossible] = np.inf
            edges[i, j] = matrix
    if not memory:
        return Problem(nodes, edges)
    usages = [random.integers(0, 10, size).astype(float) for size in sizes]
    starts = random.integers(0, 10, count)
    intervals = [(int(s), int(s + random.integers(0, 8))) for s in starts]
    limit = float(random.integers(4, 10 + 3 * count))
    return Problem(nodes, edges, Memory(usages, intervals, limit))


def brute_force(problem: Problem) -> float:
    """Returns the least cost of all choices that fit; infinite if none does."""
    count = len(problem.costs)

    def along(values: np.ndarray, *axes: int) -> np.ndarray:
        shape = [1] * count
        for axis, size in zip(axes, values.shape, strict=True):
            shape[axis] = size
        return values.reshape(shape)

    total = np.zeros([len(c) for c in problem.costs])
    for i, costs in enumerate(problem.costs):
        total = total + along(costs, i)
    for (i, j), matrix in problem.edges.items():
        total = total + along(matrix, i, j)
    if problem.memory is not None:
        for moment in range(max(end for _, end in problem.memory.intervals)):
            load = np.zeros_like(total)
            for i, (start, end) in enumerate(problem.memory.intervals):
                if start <= moment < end:
                    load = load + along(problem.memory.usages[i], i)
            total[load > problem.memory.limit] = np.inf
    return float(total.min())
