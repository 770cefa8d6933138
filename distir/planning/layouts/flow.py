"""Where values go between the choices of a program, and which of them compute much."""

from __future__ import annotations

from collections.abc import Iterator

from distir.planning.layouts.builder import GraphBuilder
from distir.planning.layouts.graph import Body
from distir.solver.flow import Flow


def flow_of(builder: GraphBuilder, entry: Body) -> Flow:
    """
    Of the nodes of a builder's graph, by their numbers. Contractions (matrix products,
    convolutions) compute much.
    """
    nodes = builder.graph.nodes
    users: list[set[int]] = [set() for _ in nodes]
    for edge in builder.graph.edges:
        maker, user = nodes[edge.source.node], nodes[edge.use.node]
        if maker != user:
            users[maker].add(user)
    # A new value of an argument leads back to it.
    arguments = {nodes[node] for node in entry.arguments}
    intensive = {
        nodes[node]
        for body in _bodies(entry)
        for op, node in body.ops.items()
        if op in builder.rules and builder.rules[op].flops
    }
    return Flow([around - arguments for around in users], frozenset(intensive))


def _bodies(entry: Body) -> Iterator[Body]:
    """The entry and what it calls, each once."""
    seen = {entry}
    waiting = [entry]
    while waiting:
        body = waiting.pop()
        yield body
        for callee in body.calls.values():
            if callee not in seen:
                seen.add(callee)
                waiting.append(callee)
