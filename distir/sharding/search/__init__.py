"""
The choices that `search-sharding` weighs, as a problem for `distir.solver`.

For each op the sharding rule offers strategies (`strategies`, `runs`); what they cost and
what changes of layout cost between them, `Prices` says. `GraphBuilder` makes one node per
op, argument and value that several ops use, and edges along the values; repeated calls
share their nodes (`sharing`).
"""

from distir.sharding.search.builder import Before, GraphBuilder, work_size
from distir.sharding.search.graph import Body, Graph, Node, Port
from distir.sharding.search.memory import LimitedProblem, Peak, peak_of, with_memory
from distir.sharding.search.prices import Prices
from distir.sharding.search.strategies import Strategy

__all__ = [
    "Before",
    "Body",
    "Graph",
    "GraphBuilder",
    "LimitedProblem",
    "Node",
    "Peak",
    "Port",
    "Prices",
    "Strategy",
    "peak_of",
    "with_memory",
    "work_size",
]
