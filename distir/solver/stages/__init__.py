"""
Divides a graph of ops into pipeline stages (Rhino section 5, with corrections that the
docstring of `StageProblem` lists). It is exact: by dynamic programming over one order
of the ops, or by integer programming over all orders. It does not depend on the IR or
devices.
"""

from __future__ import annotations

from distir.solver.stages.divide import METHODS, balance, balance_of, cheapest
from distir.solver.stages.problem import (
    SharedTensor,
    StageDivision,
    StageMemory,
    StageProblem,
)

__all__ = [
    "METHODS",
    "SharedTensor",
    "StageDivision",
    "StageMemory",
    "StageProblem",
    "balance",
    "balance_of",
    "cheapest",
]
