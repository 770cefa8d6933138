"""What DistIR is to know of an op of a dialect that is not this package's own."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.sharding.rule import Factor, Rule, sharding_rule


@sharding_rule("tensor.concat")
def concat_rule(op: Operation) -> Rule:
    """The dimensions that are not joined are factors of all operands."""
    dim = op.properties["dim"]
    assert isinstance(dim, IntegerAttr)
    shape = shape_of(op.results[0].type)
    dims = tuple(() if i == dim.value.data else (i,) for i in range(len(shape)))
    return Rule(
        factors=tuple(map(Factor, shape)),
        operands=(dims,) * len(op.operands),
        results=(dims,),
    )
