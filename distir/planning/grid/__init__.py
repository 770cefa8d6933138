"""
What `search-grid` and `distir search` are made of: the configurations (`distir.planning.configuration`),
what each of them is worth (`evaluate`), all of them on all cores (`runner`), and the best of
them (`results`, `journal`).
"""

from distir.planning.configuration import Configuration, Space, overlaps
from distir.planning.grid.evaluate import Evaluator, Outcome, distribute_pass
from distir.planning.grid.journal import Journal
from distir.planning.grid.results import chosen, nothing_fits, pareto_front, ranked
from distir.planning.grid.runner import Source, run
from distir.planning.programs import Programs, batch_of, trains

__all__ = [
    "Configuration",
    "Evaluator",
    "Journal",
    "Outcome",
    "Programs",
    "Source",
    "Space",
    "batch_of",
    "chosen",
    "distribute_pass",
    "nothing_fits",
    "overlaps",
    "pareto_front",
    "ranked",
    "run",
    "trains",
]
