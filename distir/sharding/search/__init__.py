"""
The choices that `search-sharding` weighs, as a problem for `distir.solver`.

For each op the sharding rule offers strategies (`strategies`, `runs`); what they cost and
what changes of layout cost between them, `Prices` says. `GraphBuilder` makes one node per
op, argument and value that several ops use, and edges along the values; repeated calls
share their nodes (`sharing`).
"""

from distir.sharding.search.builder import Before, GraphBuilder, work_size
from distir.sharding.search.graph import Body, Graph, Node, Port, value_node
from distir.sharding.search.memory import LimitedProblem, Peak, peak_of, with_memory
from distir.sharding.search.prices import Prices
from distir.sharding.search.strategies import NOTHING, Option, Strategy, strategies

__all__ = [
    "NOTHING",
    "Before",
    "Body",
    "Graph",
    "GraphBuilder",
    "LimitedProblem",
    "Node",
    "Option",
    "Peak",
    "Port",
    "Prices",
    "Strategy",
    "peak_of",
    "strategies",
    "value_node",
    "with_memory",
    "work_size",
]
