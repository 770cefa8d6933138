"""
How `search-stages` works: `costs` asks the simulator what each op takes, `graph` makes of a
program the problem that `distir.solver.stages` solves, `candidates` solves it under several
load caps, and `judge` simulates the pipelines that come out.
"""

from distir.planning.stages.candidates import StagesCandidate, candidates
from distir.planning.stages.costs import OpCosts
from distir.planning.stages.graph import StageGraph
from distir.planning.stages.judge import Judge, JudgedStages, simulated

__all__ = [
    "Judge",
    "JudgedStages",
    "OpCosts",
    "StageGraph",
    "StagesCandidate",
    "candidates",
    "simulated",
]
