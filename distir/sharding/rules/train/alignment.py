"""Rules of the loss of all alignments: samples are parallel."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.alignment import CtcLossGradOp, CtcLossOp, CtcOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, train_rule


def _dims(builder: RuleBuilder, op: CtcOp) -> list[Dims]:
    steps, samples, classes = shape_of(op.log_probs)
    sample = builder.factor(samples)
    whole = (builder.factor(steps, "replicate"), builder.factor(classes, "replicate"))
    labels = builder.factor(shape_of(op.targets)[1], "replicate")
    return [(whole[0], sample, whole[1]), (sample, labels), (sample,), (sample,)]


@train_rule("ctc_loss")
def loss(op: CtcLossOp) -> Rule:
    """The rule of the loss."""
    builder = RuleBuilder(op)
    dims = _dims(builder, op)
    return builder.rule(dims, [dims[2]])


@train_rule("ctc_loss_grad")
def loss_gradient(op: CtcLossGradOp) -> Rule:
    """The rule of its gradient, which is linear in that of the losses."""
    builder = RuleBuilder(op)
    dims = _dims(builder, op)
    return builder.rule([dims[2], *dims], [dims[0]], linear=[(0,)])
