"""Rules and local forms of ONNX's losses of integer labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import Operation

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, onnx_rule
from distir.sharding.rules.local_builder import LocalBuilder, is_split


@onnx_rule("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def label_loss(op: OnnxOp) -> Rule:
    """
    The rule of losses: labels are summed over unless there is no reduction; classes are
    whole. A mean whose divisor depends on the labels (weights, ignored labels) is not
    split.
    """
    reduction = op.attribute("reduction")
    depends = op.input(2) is not None or op.attribute("ignore_index") is not None
    has_log = len(op.results) > 1
    if reduction == "mean" and (depends or has_log):
        return Rule.replicated(op)
    builder = RuleBuilder(op)
    batch, classes, *places = shape_of(op.operands[0])
    summed = reduction != "none"
    kind = "reduction" if summed and not has_log else "parallel"
    labels = builder.factors([batch, *places], kind)
    classified = builder.factor(classes, "replicate")
    scores = (labels[0], classified, *labels[1:])
    return builder.rule(
        [scores, labels],
        [() if summed else labels, (labels[0], (), *labels[1:])],
        reduced={0: labels} if summed and has_log else None,
    )


@local_form("onnx.NegativeLogLikelihoodLoss", "onnx.SoftmaxCrossEntropyLoss")
def label_loss_local(context: LocalContext) -> Sequence[Operation]:
    """
    The local form of a mean: the mean over the labels held here counts as its part of the
    whole mean.
    """
    builder = LocalBuilder(context)
    if builder.op.attribute("reduction") != "mean" or not is_split(context):
        return [context.same_op()]
    held = np.prod(shape_of(context.operands[1]), dtype=np.int64)
    total = np.prod(shape_of(context.op.operands[1]), dtype=np.int64)
    dtype = numpy_dtype(element_type(context.op.results[0]))
    (loss,) = builder.finish()
    builder.ops.append(loss)
    part = builder.constant(np.asarray(held / total, dtype))
    builder.emit("Mul", [loss.results[0], part], context.result_types[0])
    return builder.ops
