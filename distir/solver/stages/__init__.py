"""
Divides a graph of ops into pipeline stages (Rhino section 5, with corrections that the
docstring of `StageProblem` lists). The division is exact: by dynamic programming over
one order of the ops, or by integer programming over all orders. The IR and the devices
play no role.
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
