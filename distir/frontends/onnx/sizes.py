"""Which values of an ONNX graph do nothing but decide sizes of others."""

from __future__ import annotations

from onnx import AttributeProto, GraphProto, NodeProto

from distir.frontends.onnx.names import domain_of

_SIZES = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""By operator, the positions of operands that decide the sizes of results."""


def decides_sizes(graph: GraphProto) -> set[str]:
    """
    Returns the values of a graph, whose nodes are in order, that are read to decide sizes and
    for nothing else, through any number of nodes.
    """
    kept = {output.name for output in graph.output} | _read_in_bodies(graph)
    decided: set[str] = set()
    for node in reversed(graph.node):
        outputs = [name for name in node.output if name]
        passes_on = bool(outputs) and decided.issuperset(outputs)
        for position, name in enumerate(node.input):
            own = () if domain_of(node) else _SIZES.get(node.op_type, ())
            if passes_on or position in own:
                decided.add(name)
            else:
                kept.add(name)
        decided -= kept
    return decided


def _read_in_bodies(graph: GraphProto) -> set[str]:
    """Returns the names that bodies of loops and conditions read."""
    found: set[str] = set()
    pending: list[NodeProto] = [
        inner for node in graph.node for inner in _inner_nodes(node)
    ]
    while pending:
        node = pending.pop()
        found.update(node.input)
        pending += _inner_nodes(node)
    return found


def _inner_nodes(node: NodeProto) -> list[NodeProto]:
    graphs = [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    return [inner for graph in graphs for inner in graph.node]
