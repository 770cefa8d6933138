"""Local forms of ops whose attributes count groups: of channels, or of samples."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.batch_normalization import (
    GhostBatchNormGradOp,
    GhostBatchNormOp,
)
from distir.dialects.train_ops.convolution import (
    ConvGradOp,
)
from distir.sharding.local import LocalContext, local_form


@local_form("train.conv_grad_input", "train.conv_grad_weight")
def convolution_local(context: LocalContext) -> Sequence[Operation]:
    """The local form of these gradients: the attribute `group` counts local groups."""
    op, local = context.op, context.same_op()
    assert isinstance(op, ConvGradOp)
    if op.groups > 1:
        group = context.rule.operands[0][1][0]
        groups = op.groups // context.parts_of(group)
        local.properties["group"] = IntegerAttr(groups, i64)
    return [local]


@local_form("train.ghost_batch_norm", "train.ghost_batch_norm_grad")
def local_parts(context: LocalContext) -> Sequence[Operation]:
    """
    Returns the local form of ghost batch normalisation, with the local number of groups.
    """
    op = context.op
    assert isinstance(op, GhostBatchNormOp | GhostBatchNormGradOp)
    local = context.same_op()
    assert isinstance(local, GhostBatchNormOp | GhostBatchNormGradOp)
    groups = op.groups.value.data * shape_of(local.x)[0] // shape_of(op.x)[0]
    local.groups = IntegerAttr(groups, i64)
    return [local]
