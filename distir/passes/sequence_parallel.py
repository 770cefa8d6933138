"""`sequence-parallel`: between the blocks, split the sequence over the tensor axis."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
)

from distir.dialects.dist import SCOPE, ConstrainOp, Layout, Shard
from distir.errors import DistIRError
from distir.passes.annotations import axis_mesh
from distir.program import describe
from distir.sharding.mesh import Mesh
from distir.sharding.rule import shape_of

NORMALIZATIONS = ("onnx.LayerNormalization", "onnx.RMSNormalization")


@dataclass
class SplitSequence(RewritePattern):
    """Asks for the input of a normalization to be split along its sequence."""

    mesh: Mesh
    axis: str
    found: int = 0

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if op.name not in NORMALIZATIONS:
            return
        source = op.operands[0]
        shape = shape_of(source.type)
        if len(shape) < 2:
            return
        if shape[-2] % self.mesh.size(self.axis):
            raise DistIRError(
                f"sequence-parallel: {describe(op)} works on a sequence of {shape[-2]}, "
                f"which axis {self.axis!r} of size {self.mesh.size(self.axis)} does not "
                f"divide"
            )
        layout = Layout(self.mesh.name).with_dim(
            len(shape) - 2, [Shard(self.axis)], len(shape)
        )
        constrain = ConstrainOp(source, layout, [self.axis])
        if SCOPE in op.attributes:
            constrain.attributes[SCOPE] = op.attributes[SCOPE]
        rewriter.insert_op(constrain)
        op.operands[0] = constrain.result
        self.found += 1


@dataclass(frozen=True)
class SequenceParallelPass(ModulePass):
    """
    Megatron's sequence parallelism (Korthikanti et al. 2022): the input of every
    normalization is constrained to be split along the sequence (the dimension before
    the last) over the tensor axis. From there the rules do the rest: the all-reduce
    behind a row-split matrix becomes a reduce-scatter, the column-split matrix behind
    the normalization gathers, and what lies between works on parts.
    """

    name = "sequence-parallel"

    axis: str = "t"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = SplitSequence(axis_mesh(op, self.axis), self.axis)
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
        if not pattern.found:
            raise DistIRError(
                "sequence-parallel: the program has no normalization to split"
            )
