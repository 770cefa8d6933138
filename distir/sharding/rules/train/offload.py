"""The rule of copies to and from the host's memory: each device copies its part."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("offload", "fetch")
def copy(op: OffloadOp | FetchOp) -> Rule:
    """Every dimension is parallel."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.x))
    return builder.rule([dims], [dims])
