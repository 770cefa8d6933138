"""
The simulator: how long a program takes on a cluster, and how much memory it needs.

`simulate` compiles each function once to a plan (`plan.py`), whose costs come from the
registry (`costs.py`) and the models of communication (`communication.py`,
`transfers.py`), and runs the plans on one clock per device (`machine.py`). What the
reports say (`memory_report.py`, `time_report.py`, `html_report.py`, `difference.py`) they
find by following the program while it is executed once more, op by op (`following.py`).
"""

from distir.interpreters.cost.costs import Cost, CostContext, cost_function
from distir.interpreters.cost.difference import Difference
from distir.interpreters.cost.html_report import write_html
from distir.interpreters.cost.memory_report import MemoryReport
from distir.interpreters.cost.simulation import Simulation, report
from distir.interpreters.cost.simulator import simulate
from distir.interpreters.cost.time_report import TimeReport

__all__ = [
    "Cost",
    "CostContext",
    "Difference",
    "MemoryReport",
    "Simulation",
    "TimeReport",
    "cost_function",
    "report",
    "simulate",
    "write_html",
]
