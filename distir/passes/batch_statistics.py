"""`batch-statistics`: training-mode batch normalisation as statistics and their use."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from distir.dialects.dist import SCOPE
from distir.dialects.onnx import OnnxOp
from distir.gradients.rule import GradientBuilder
from distir.gradients.rules.batch_normalization import moments


class WriteOutStatistics(RewritePattern):
    """
    The mean and variance of the batch, batch normalisation with these, and the running
    ones where they are used.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: OnnxOp, rewriter: PatternRewriter) -> None:
        if op.name != "onnx.BatchNormalization" or not op.attribute("training_mode"):
            return

        def insert(new: Operation) -> None:
            rewriter.insert(new)

        x, scale, bias, *running = op.operands
        build = GradientBuilder(insert, op.attributes.get(SCOPE))
        statistics = moments(x, running[0], build)
        epsilon, momentum = op.attribute("epsilon"), op.attribute("momentum")
        normal = build.onnx(
            "BatchNormalization", x, scale, bias, *statistics, epsilon=epsilon
        )
        new: list[SSAValue | None] = [normal]
        for result, before, now in zip(
            op.results[1:], running, statistics, strict=False
        ):
            if not result.uses:
                new.append(None)
                continue
            kept = build.onnx("Mul", before, build.scalar(momentum, before))
            share = build.onnx("Mul", now, build.scalar(1 - momentum, now))
            new.append(build.onnx("Add", kept, share))
        rewriter.replace(op, [], new)


@dataclass(frozen=True)
class BatchStatisticsPass(ModulePass):
    """
    Writes batch normalisation in training mode as the mean and variance of the batch and
    batch normalisation with them. Both are sums over the batch: it can then be split,
    and every device uses the statistics of the whole batch.
    """

    name = "batch-statistics"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(
            WriteOutStatistics(), apply_recursively=False
        ).rewrite_module(op)
