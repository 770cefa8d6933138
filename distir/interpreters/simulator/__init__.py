"""
The simulator: predicts the time that a program takes on a cluster, and the memory that
it needs.

- `profiles`: the performance of devices and links in practice, read from files;
- `costs`: a cluster as numbers, and the costs of ops and communication on it;
- `engine`: compiles each function once (`compiled.py`) and runs the compiled functions
  on one clock per device (`machine.py`); calls are replaced by summaries
  (`summaries.py`);
- `reports`: where time and memory go, found by executing the program once more, op by
  op (`engine/following.py`).
"""

from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.simulator.reports.difference import Difference
from distir.interpreters.simulator.reports.html_report import write_html
from distir.interpreters.simulator.reports.memory_report import MemoryReport
from distir.interpreters.simulator.reports.time_report import TimeReport
from distir.interpreters.simulator.simulate import cluster_of, simulate
from distir.interpreters.simulator.simulation import Simulation, report

__all__ = [
    "Cost",
    "CostContext",
    "Difference",
    "MemoryReport",
    "Simulation",
    "TimeReport",
    "cluster_of",
    "cost_function",
    "report",
    "simulate",
    "write_html",
]
