"""
The search over a grid of plans, which `search-grid` and `distir search` run.

`distir.planning.plans.plan` defines the plans. `evaluate` distributes and simulates one
plan, `runner` evaluates all plans on all cores, `results` ranks the results, and
`journal` saves results as soon as they are known.
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
