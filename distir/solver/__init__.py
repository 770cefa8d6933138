"""
Chooses one alternative per node of a graph at the least total cost: the mathematics behind
`search-sharding` and `search-stages`. Nothing here knows of IR, layouts or devices.
"""

from __future__ import annotations

from distir.solver.problem import Memory, Problem, Solution
from distir.solver.result import InfeasibleError
from distir.solver.solve import solution_of, solve

__all__ = ["InfeasibleError", "Memory", "Problem", "Solution", "solution_of", "solve"]
