"""
Rules of scatters.

Where updates are added, a scatter is a sum over its index places, of which devices can have some
each. But the data must be added once: see its decomposition.
"""

from __future__ import annotations

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.rule import Kind, Rule
from distir.sharding.rules.builder import (
    Dims,
    RuleBuilder,
    attribute_axis,
    onnx_rule,
)


def _place_kind(op: OnnxOp) -> Kind:
    """Returns the kind of the factors of index places: summed over if updates are added."""
    return "reduction" if op.attribute("reduction") == "add" else "replicate"


def _rule(
    op: OnnxOp,
    builder: RuleBuilder,
    data: Dims,
    where: Dims,
    updates: Dims,
    places: Dims,
) -> Rule:
    """Returns the rule of a scatter whose index places have the factors `places`."""
    adds = op.attribute("reduction") == "add"
    linear = [(0, 2)] if adds or op.attribute("reduction") == "none" else []
    return builder.rule(
        [data, where, updates],
        [data],
        linear=linear,
        decomposed=places if adds else (),
    )


@onnx_rule("ScatterElements")
def scatter_elements(op: OnnxOp) -> Rule:
    """
    The rule of ScatterElements: dimensions that data and indices share are parallel, except
    the axis.
    """
    builder = RuleBuilder(op)
    sizes, places = shape_of(op.operands[0]), shape_of(op.operands[1])
    axis = attribute_axis(op, len(sizes))
    data = tuple(
        builder.factor(m, "parallel" if m == n and i != axis else "replicate")
        for i, (m, n) in enumerate(zip(sizes, places, strict=True))
    )
    kinds: list[Kind] = ["replicate"] * len(sizes)
    kinds[axis] = _place_kind(op)
    updates = tuple(
        dim if m == n and i != axis else builder.factor(n, kinds[i])
        for i, (m, n, dim) in enumerate(zip(sizes, places, data, strict=True))
    )
    return _rule(op, builder, data, updates, updates, updates[axis : axis + 1])


@onnx_rule("ScatterND")
def scatter_nd(op: OnnxOp) -> Rule:
    """The rule of ScatterND: indexed dimensions are whole, whole slices are parallel."""
    builder = RuleBuilder(op)
    sizes, places = shape_of(op.operands[0]), shape_of(op.operands[1])
    depth = places[-1]
    indexed = builder.factors(sizes[:depth], "replicate")
    rest = builder.factors(sizes[depth:])
    where = builder.factors(places[:-1], _place_kind(op))
    data = (*indexed, *rest)
    return _rule(op, builder, data, (*where, ()), (*where, *rest), where)
