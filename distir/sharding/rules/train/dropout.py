"""Rule and local form of dropout."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.dropout import DropoutGradOp, DropoutOp
from distir.dialects.train_ops.splits import Split
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule
from distir.sharding.rules.local_builder import LocalBuilder


@train_rule("dropout")
def dropout(op: DropoutOp) -> Rule:
    """
    The rule of dropout: every dimension is parallel, the counter whole. Partial sums are
    reduced first, so that elements are rounded as in the sequential program. A part of a
    tensor (that of one micro-batch) can be split again.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.x))
    return builder.rule([dims, (), *(() for _ in op.coordinates)], [dims, dims])


@train_rule("dropout_grad")
def dropout_gradient(op: DropoutGradOp) -> Rule:
    """
    The rule of its gradient: every dimension is parallel; partial sums are reduced first,
    as by dropout.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.dy))
    return builder.rule([dims, dims], [dims])


@local_form("train.dropout")
def dropout_of_part(context: LocalContext) -> Sequence[Operation]:
    """
    The local form of dropout: the op with this device's position, which determines the
    elements that it holds.
    """
    op, builder = context.op, LocalBuilder(context)
    assert isinstance(op, DropoutOp)
    splits: list[Split] = list(op.parts)
    coordinates: list[SSAValue] = list(context.operands[2:])
    for dim, factors in enumerate(context.rule.operands[0]):
        left = shape_of(op.x)[dim]
        for shard in (s for f in factors for s in context.assignment.get(f, ())):
            parts = context.mesh.size(shard.axis)
            run = left // parts if shard.run is None else shard.run
            splits.append(Split(dim, parts, run))
            coordinates.append(builder.coordinate([shard.axis]))
            left //= parts
    if len(splits) == len(op.parts):
        return [context.same_op()]
    x, counter = context.operands[:2]
    local = DropoutOp(
        *(x, counter, coordinates),
        ratio=op.ratio,
        seed=op.seed,
        stream=op.stream,
        global_shape=op.whole_shape,
        splits=splits,
        mask=None if op.mask is None else context.result_types[1],
    )
    local.attributes.update(op.attributes)
    return [*builder.ops, local]
