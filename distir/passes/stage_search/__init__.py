"""
How `search-stages` works: `costs` asks the simulator what each op takes, `graph` makes of a
program the problem that `distir.solver.stages` solves, `candidates` solves it under several
load caps, and `judge` simulates the pipelines that come out.
"""

from distir.passes.stage_search.candidates import Candidate, candidates
from distir.passes.stage_search.costs import OpCosts
from distir.passes.stage_search.graph import Graph
from distir.passes.stage_search.judge import Judge, Outcome, simulated

__all__ = [
    "Candidate",
    "Graph",
    "Judge",
    "OpCosts",
    "Outcome",
    "candidates",
    "simulated",
]
