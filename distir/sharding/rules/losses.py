"""Rules and local forms of ONNX's losses of integer labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import StringAttr, TensorType, i1
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_op import OMITTED, OnnxOp
from distir.dialects.onnx_values import (
    constant_attr,
    numpy_dtype,
    onnx_element_type,
    tensor_type,
)
from distir.dialects.tensors import element_type, shape_of
from distir.sharding.decompose import decomposition
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, onnx_rule
from distir.sharding.rules.local_builder import LocalBuilder, is_split


@onnx_rule("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def label_loss(op: OnnxOp) -> Rule:
    """
    The rule of losses: labels are summed over unless there is no reduction; classes are
    whole. The divisor of a mean depends on which labels are ignored, so that labels are
    split by the decomposition; with weights of classes it is not split at all.
    """
    reduction = op.attribute("reduction")
    ignores = op.attribute("ignore_index") is not None
    has_log = len(op.results) > 1
    if reduction == "mean" and (op.input(2) is not None or has_log):
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
        decomposed=labels if reduction == "mean" and ignores else (),
    )


@decomposition("onnx.NegativeLogLikelihoodLoss", "onnx.SoftmaxCrossEntropyLoss")
def mean_in_steps(op: Operation) -> list[Operation] | None:
    """
    Decomposes a mean over the labels that are not ignored: the sum, their number and the
    quotient.
    """
    assert isinstance(op, OnnxOp)
    scores, labels = op.operands
    given = {k: v for k, v in op.properties.items() if k != OMITTED}
    given["reduction"] = StringAttr("sum")
    loss, ops = op.results[0].type, list[Operation]()
    assert isinstance(loss, TensorType)

    def new(
        name: str,
        inputs: Sequence[SSAValue],
        type_: Attribute,
        attributes: dict[str, Any] | None = None,
    ) -> SSAValue:
        scope = {SCOPE: op.attributes[SCOPE]} if SCOPE in op.attributes else {}
        ops.append(operator(name).build_op(inputs, [type_], attributes, scope))
        return ops[-1].results[0]

    total = new(op.SCHEMA.name, [scores, labels], loss, given)
    ignored = np.array(op.attribute("ignore_index"), numpy_dtype(element_type(labels)))
    number = new(
        *("Constant", [], tensor_type((), element_type(labels))),
        {"value": constant_attr(ignored)},
    )
    flags = tensor_type(shape_of(labels), i1)
    kept = new("Not", [new("Equal", [labels, number], flags)], flags)
    wide = tensor_type(shape_of(labels), loss.element_type)
    counted = new("Cast", [kept], wide, {"to": onnx_element_type(loss.element_type)})
    count = new("ReduceSum", [counted], loss, {"keepdims": 0})
    new("Div", [total, count], loss)
    return ops


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
