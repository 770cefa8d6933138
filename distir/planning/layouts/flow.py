"""
The data flow between the choices of a layout search, and the choices that are
compute-intensive.
"""

from __future__ import annotations

from distir.planning.graph.function_plan import with_callees
from distir.planning.layouts.builder import GraphBuilder
from distir.planning.layouts.reshards import (
    LayoutBody,
)
from distir.solver.flow import Flow


def flow_of(builder: GraphBuilder, entry: LayoutBody) -> Flow:
    """
    Returns the data flow between the nodes of the graph in `builder`, by node number.
    Nodes of contractions (matrix products, convolutions) are marked as
    compute-intensive. Edges from the new value of an argument back to the argument are
    left out.
    """
    nodes = builder.graph.nodes
    users: list[set[int]] = [set() for _ in nodes]
    for edge in builder.graph.edges:
        maker, user = nodes[edge.source.node], nodes[edge.use.node]
        if maker != user:
            users[maker].add(user)
    # The new value of an argument has an edge back to the argument.
    arguments = {nodes[node] for node in entry.arguments}
    intensive = {
        nodes[node]
        for body in with_callees(entry)
        for op, node in body.ops.items()
        if op in builder.rules and builder.rules[op].flops
    }
    return Flow([around - arguments for around in users], frozenset(intensive))
