"""
Google's public contest of sharding searches (ASPLOS/EuroSys 2025, intra-operator parallelism):
`python bench/iopddl.py DIRECTORY [INSTANCE ...]` solves the instances
`asplos-2025-iopddl-*.json.gz` in a directory and prints cost, bound, gap and seconds, against
the published reference costs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np

from distir.solver import Memory, Problem, solve

REFERENCE = {"A": 6548641531, "B": 532843, "C": 84102445260, "G": 217039}
# Entries from here on stand for infinity.
INFINITE = 1e17


def _costs(values: list[float]) -> np.ndarray:
    costs = np.array(values, np.float64)
    costs[costs >= INFINITE] = np.inf
    return costs


def load(path: Path) -> Problem:
    """Returns an instance; its parallel edges are added up."""
    with gzip.open(path) as file:
        data = json.load(file)["problem"]
    nodes = data["nodes"]
    costs = [_costs(c) for c in nodes["costs"]]
    edges: dict[tuple[int, int], np.ndarray] = {}
    for (i, j), values in zip(
        data["edges"]["nodes"], data["edges"]["costs"], strict=True
    ):
        matrix = _costs(values).reshape(len(costs[i]), len(costs[j]))
        if i > j:
            i, j, matrix = j, i, matrix.T
        edges[i, j] = edges[i, j] + matrix if (i, j) in edges else matrix
    memory = Memory(
        [np.array(u, np.float64) for u in nodes["usages"]],
        [(start, end) for start, end in nodes["intervals"]],
        data["usage_limit"],
    )
    return Problem(costs, edges, memory)


def main() -> None:
    """Solves the instances and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("instances", nargs="*", default=sorted(REFERENCE))
    parser.add_argument("--time-limit", type=float, default=300.0)
    parser.add_argument("--solver", choices=["highs", "cbc"], default="highs")
    options = parser.parse_args()
    print(
        "instance  nodes            cost           bound      gap  to reference  wall  cpu"
    )
    for name in options.instances:
        problem = load(options.directory / f"asplos-2025-iopddl-{name}.json.gz")
        cpu = time.process_time()
        solution = solve(problem, solver=options.solver, time_limit=options.time_limit)
        cpu = time.process_time() - cpu
        ratio = solution.objective / REFERENCE.get(name, np.nan) - 1
        print(
            f"{name:8} {len(problem.costs):6} {solution.objective:15.0f} "
            f"{solution.bound:15.0f} {solution.gap:8.1e} {ratio:+12.4%} "
            f"{solution.seconds:6.1f} {cpu:5.1f}  {solution.method}",
            flush=True,
        )


if __name__ == "__main__":
    main()
