"""
How `search-stages` works: `costs` asks the simulator what each op takes, `graph` makes of a
program the problem that `distir.solver.stages` solves, `candidates` solves it under several
load caps, and `judge` simulates the pipelines that come out.
"""

from distir.planning.stages.candidates import Candidate, candidates
from distir.planning.stages.costs import OpCosts
from distir.planning.stages.graph import Graph
from distir.planning.stages.judge import Judge, Outcome, simulated

__all__ = [
    "Candidate",
    "Graph",
    "Judge",
    "OpCosts",
    "Outcome",
    "candidates",
    "simulated",
]
