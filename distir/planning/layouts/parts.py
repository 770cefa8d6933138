"""The cost of an op that is replaced by its decomposition."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import Layout
from distir.planning.costs.cost_model import CostModel
from distir.planning.graph.strategies import LayoutStrategy
from distir.sharding.decompose import decompose
from distir.sharding.rule import rule_for


def _parts(
    op: Operation, strategy: LayoutStrategy
) -> list[tuple[Operation, LayoutStrategy]]:
    ops = decompose(op)
    assert ops is not None
    return list(zip(ops, strategy.parts, strict=True))


def cost_of_parts(
    op: Operation, strategy: LayoutStrategy, cost_model: CostModel
) -> float:
    """
    Returns the cost of the ops of the decomposition, with that of reducing what they leave
    partial.
    """
    total = 0.0
    made: dict[SSAValue, Layout] = {}
    for part, layouts in _parts(op, strategy):
        for value, layout in zip(part.operands, layouts.operands, strict=True):
            before = made.get(value, layout)
            if before != layout:
                total += cost_model.reshard(value.type, before, layout)
                made[value] = layout  # for the ops behind it, too
        made |= zip(part.results, layouts.results, strict=True)
        total += cost_model.op(part, rule_for(part), layouts)
    return total


def bytes_between_parts(
    op: Operation, strategy: LayoutStrategy, cost_model: CostModel
) -> int:
    """
    Returns the bytes of the values that the ops of the decomposition hand to each other.
    """
    return sum(
        cost_model.bytes(result.type, layout)
        for part, layouts in _parts(op, strategy)[:-1]
        if part.operands  # constants are counted once for the whole program
        for result, layout in zip(part.results, layouts.results, strict=True)
    )
