"""
Chooses one alternative for each node of a graph such that the total cost is least. This
is the mathematics behind `search-sharding` and `search-stages`. It does not depend on
the IR, layouts or devices.
"""

from __future__ import annotations

from distir.solver.problem import Memory, Problem, Solution
from distir.solver.result import InfeasibleError
from distir.solver.solve import solution_of, solve

__all__ = ["InfeasibleError", "Memory", "Problem", "Solution", "solution_of", "solve"]
