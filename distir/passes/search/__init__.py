"""
What `search-grid` and `distir search` are made of: the configurations (`grid`), what each
of them is worth (`evaluate`), all of them on all cores (`runner`), and the best of them
(`results`, `journal`). `sharding` is the search behind `search-sharding`, with the
simulator's prices (`simulated_prices`); `sharding_choice` writes down what it chose.
"""

from distir.passes.search.evaluate import Evaluator, Outcome, distribute_pass
from distir.passes.search.grid import Configuration, Space, overlaps
from distir.passes.search.journal import Journal
from distir.passes.search.programs import Programs, batch_of, trains
from distir.passes.search.results import chosen, nothing_fits, pareto_front, ranked
from distir.passes.search.runner import Source, run

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
