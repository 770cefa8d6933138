"""
The search over a grid of plans, behind `search-grid` and `distir search`.

The plans are defined in `distir.planning.plans.plan`; `evaluate` distributes and simulates one,
`runner` evaluates all of them on all cores, `results` ranks them, `journal` saves results
as they come.
"""

from distir.planning.grid.evaluate import Evaluator
from distir.planning.grid.journal import Journal
from distir.planning.grid.results import chosen, nothing_fits, pareto_front, ranked
from distir.planning.grid.runner import Source, run
from distir.planning.plans.options import switched
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan, Space
from distir.planning.plans.programs import Programs, batch_of, trains
from distir.planning.plans.result import Impossible, Result, Simulated

__all__ = [
    "Evaluator",
    "GridPlan",
    "Impossible",
    "Journal",
    "LayoutPlan",
    "Plan",
    "Programs",
    "Result",
    "Simulated",
    "Source",
    "Space",
    "batch_of",
    "chosen",
    "nothing_fits",
    "pareto_front",
    "ranked",
    "run",
    "switched",
    "trains",
]
