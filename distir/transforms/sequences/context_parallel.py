"""
Prepares attention for split sequences. Positions become operands of attention, and
devices keep keys and values in parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, i64
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern
from xdsl.rewriter import InsertPoint

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import OnnxOp, operator
from distir.dialects.onnx_ops.values import constant_attr
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    AttentionOp,
    FusedAttentionOp,
    PlacedAttentionGradOp,
    PlacedAttentionOp,
)
from distir.program import describe
from distir.sharding.mesh import Mesh


@dataclass
class TakeTrainedForm(RewritePattern):
    """
    Replaces attention of a forward program by the equivalent op of the dialect `train`.
    """

    left: list[str] = field(default_factory=list[str])
    """
    Descriptions, for users, of causal attention that no op of `train` can replace.
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if op.name != "onnx.Attention" or not isinstance(op, OnnxOp):
            return
        # Importing it imports the gradients of all ops, and few programs need it.
        from distir.gradients.rules.attention import kept_attention

        kept = kept_attention(op)
        if kept is not None:
            kept.attributes.update(op.attributes)
            unused = len(op.results) - 1
            rewriter.replace(op, kept, [kept.results[0], *[None] * unused])
        elif op.attribute("is_causal"):
            self.left.append(describe(op))


class PlaceAttention(RewritePattern):
    """
    Gives causal attention the positions of its queries and keys, 0, 1, 2, ..., as
    operands.
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if not isinstance(op, AttentionOp | AttentionGradOp) or op.is_causal is None:
            return
        new_ops = positions(op.sizes.queries, op)
        queries = keys = new_ops[-1]
        if op.sizes.keys != op.sizes.queries:
            new_ops += positions(op.sizes.keys, op)
            keys = new_ops[-1]
        kind = (
            PlacedAttentionOp if isinstance(op, AttentionOp) else PlacedAttentionGradOp
        )
        given = len(op.operands) - (3 if op.mask is None else 4)
        placed = kind.create(
            operands=[
                *op.operands[:given],
                queries.results[0],
                keys.results[0],
                *op.operands[given:],
            ],
            result_types=[r.type for r in op.results],
            properties={n: p for n, p in op.properties.items() if n != "is_causal"},
            attributes=op.attributes,
        )
        rewriter.replace(op, [*new_ops, placed])


def positions(count: int, op: Operation) -> list[Operation]:
    """
    Returns the ops that compute the numbers 0 to `count - 1`. The last op has the
    result.
    """
    scope = {n: a for n, a in op.attributes.items() if n == SCOPE}
    number, numbers = TensorType(i64, []), TensorType(i64, [count])
    bounds = [
        operator("Constant").build_op(
            [], [number], {"value": constant_attr(np.array(bound))}, scope
        )
        for bound in (0, count, 1)
    ]
    return [*bounds, operator("Range").build_op(bounds, [numbers], None, scope)]


@dataclass
class SplitKeys(RewritePattern):
    """
    Requests the split `shard` along the sequence for queries, keys, values and their
    gradients, in attention whose queries and keys have the length `length`. A device
    gathers keys and values only for the computation and keeps only its part.
    """

    mesh: Mesh
    length: int
    shard: Shard
    found: int = 0

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if not isinstance(op, FusedAttentionOp):
            return
        if (op.sizes.queries, op.sizes.keys) != (self.length, self.length):
            return
        self.found += 1
        dim = 1 if op.is_packed else 2
        for value in dict.fromkeys((op.q, op.k, op.v)):
            constrain = self._split(value, dim, op)
            rewriter.insert(constrain, InsertPoint.before(op))
            for i, operand in enumerate(op.operands):
                if operand is value:
                    op.operands[i] = constrain.result
        if isinstance(op, AttentionGradOp | PlacedAttentionGradOp):
            for value in (op.dk, op.dv):
                constrain = self._split(value, dim, op)
                rewriter.insert(constrain, InsertPoint.after(op))
                value.replace_uses_with_if(
                    constrain.result, lambda use, c=constrain: use.operation is not c
                )

    def _split(self, value: SSAValue, dim: int, op: Operation) -> ConstrainOp:
        """
        Returns the op that requests the split for `value`, an operand or a result of
        `op`.
        """
        rank = len(shape_of(value.type))
        layout = Layout(self.mesh.name).with_dim(dim, [self.shard], rank)
        constrain = ConstrainOp(value, layout, [self.shard.axis])
        if SCOPE in op.attributes:
            constrain.attributes[SCOPE] = op.attributes[SCOPE]
        return constrain


def split_attention(
    module: ModuleOp, mesh: Mesh, length: int, shard: Shard
) -> tuple[int, list[str]]:
    """
    Prepares all attention over sequences of length `length` for a split. The split
    `shard` of queries is also requested for keys and values. Returns the number of
    prepared attention ops, and messages for users about causal attention that cannot be
    split.
    """
    trained, split = TakeTrainedForm(), SplitKeys(mesh, length, shard)
    for pattern in (trained, PlaceAttention(), split):
        walker = PatternRewriteWalker(pattern, apply_recursively=False)
        walker.rewrite_module(module)
    return split.found, trained.left
