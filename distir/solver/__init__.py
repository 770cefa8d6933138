"""
Choosing one alternative per node of a graph at the least total cost: the mathematics behind
`search-sharding` and `search-stages`. Knows nothing of IR, layouts or devices.
"""

from __future__ import annotations

from distir.solver.problem import Problem, Solution

__all__ = ["Problem", "Solution"]
