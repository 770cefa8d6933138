"""
The simulator: how long a program takes on a cluster, and how much memory it needs.

`simulate` compiles each function once to a plan (`plan.py`), whose costs come from the
registry (`costs.py`) and the models of communication (`communication.py`,
`transfers.py`), and runs the plans on one clock per device (`machine.py`).
"""

from distir.interpreters.cost.costs import Cost, CostContext, cost_function
from distir.interpreters.cost.simulation import Simulation, report
from distir.interpreters.cost.simulator import simulate

__all__ = ["Cost", "CostContext", "Simulation", "cost_function", "report", "simulate"]
