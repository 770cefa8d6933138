"""
Sharding rules of losses of integer labels, and their local forms: the ops of one
device. Cross-entropies whose classes are split are decomposed into steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    i1,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist_attributes import ENTRIES, NARROW_LOSS
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OMITTED, OnnxOp
from distir.dialects.onnx_ops.values import (
    constant_attr,
    numpy_dtype,
    onnx_element_type,
    tensor_type,
)
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.losses import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    ExponentialSumOp,
    LabelLogitOp,
    LogitMaximumOp,
    is_narrow_loss,
)
from distir.sharding.decompose import decomposition, in_scope_of, named_parts
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, onnx_rule
from distir.sharding.rules.indexing import locate
from distir.sharding.rules.local_builder import LocalBuilder, is_split


@onnx_rule("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def label_loss(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of losses of integer labels.

    Labels are summed over, unless the loss has no reduction. Classes are whole, except
    for a summed or averaged softmax of rows, whose decomposition can split them. If the
    loss ignores some labels, the divisor of a mean depends on the labels, so only the
    decomposition splits labels. A mean with class weights is not split at all.
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
    has_steps = _has_steps(op)
    classified = builder.factor(classes, "reduction" if has_steps else "replicate")
    scores = (labels[0], classified, *labels[1:])
    return builder.rule(
        [scores, labels],
        [() if summed else labels, (labels[0], (), *labels[1:])],
        reduced={0: labels} if summed and has_log else None,
        decomposed=(
            *(labels if reduction == "mean" and ignores else ()),
            *((classified,) if has_steps else ()),
        ),
    )


def _has_steps(op: OnnxOp) -> bool:
    """
    Whether a loss is computed in the steps of `train.cross_entropy`. It must be a
    softmax of rows of classes that is summed or averaged without class weights.
    """
    return (
        op.name == "onnx.SoftmaxCrossEntropyLoss"
        and len(shape_of(op.operands[0])) == 2
        and op.attribute("reduction") != "none"
        and op.input(2) is None
        and len(op.results) == 1
    )


@decomposition("onnx.NegativeLogLikelihoodLoss", "onnx.SoftmaxCrossEntropyLoss")
def loss_in_steps(op: Operation) -> list[Operation] | None:
    """
    Decomposes a loss. A softmax loss of a matrix [rows, classes] becomes steps whose
    classes can be split over devices. Any other mean loss that ignores some labels,
    without class weights, becomes three steps: a sum, the number of labels, and the sum
    divided by this number. Returns None for all losses of other kinds.
    """
    assert isinstance(op, OnnxOp)
    if not _has_steps(op):
        return sum_and_number(op)
    ignored = op.attribute("ignore_index")
    is_mean = op.attribute("reduction") == "mean"
    divisor = shape_of(op.operands[1])[0] if is_mean and ignored is None else None
    ops = _softmax_steps(op, divisor=divisor, ignore_index=ignored)
    loss = op.results[0].type
    assert isinstance(loss, TensorType)
    if ops[-1].results[0].type != loss:
        to = onnx_element_type(loss.element_type)
        total = [ops[-1].results[0]]
        ops.append(operator("Cast").build_op(total, [loss], {"to": to}))
    if is_mean and ignored is not None:
        ops += _divided(op, ops[-1].results[0], ignored)
    return in_scope_of(op, ops)


@named_parts("onnx.NegativeLogLikelihoodLoss", "onnx.SoftmaxCrossEntropyLoss")
def sum_and_number(op: Operation) -> list[Operation] | None:
    """
    Decomposes a mean over the labels that are not ignored into the sum, the number of
    labels and the quotient. Returns None for any other loss, and for a loss with class
    weights.
    """
    assert isinstance(op, OnnxOp)
    ignored = op.attribute("ignore_index")
    if op.attribute("reduction") != "mean" or ignored is None:
        return None
    if op.input(2) is not None or len(op.results) > 1:
        return None
    given = {k: v for k, v in op.properties.items() if k != OMITTED}
    given["reduction"] = StringAttr("sum")
    loss = op.results[0].type
    total = operator(op.SCHEMA.name).build_op(list(op.operands[:2]), [loss], given)
    return in_scope_of(op, [total, *_divided(op, total.results[0], ignored)])


def _divided(op: OnnxOp, total: SSAValue, ignored: int) -> list[Operation]:
    """
    Returns the ops that divide `total`, a sum of losses, by the number of labels that
    differ from `ignored`.
    """
    labels, loss, ops = op.operands[1], total.type, list[Operation]()
    assert isinstance(loss, TensorType)

    def new(
        name: str,
        inputs: Sequence[SSAValue],
        type_: Attribute,
        attributes: dict[str, Any] | None = None,
    ) -> SSAValue:
        ops.append(operator(name).build_op(inputs, [type_], attributes))
        return ops[-1].results[0]

    one = np.array(ignored, numpy_dtype(element_type(labels)))
    scalar = tensor_type((), element_type(labels))
    number = new("Constant", [], scalar, {"value": constant_attr(one)})
    flags = tensor_type(shape_of(labels), i1)
    kept = new("Not", [new("Equal", [labels, number], flags)], flags)
    wide = tensor_type(shape_of(labels), loss.element_type)
    to = onnx_element_type(loss.element_type)
    counted = new("Cast", [kept], wide, {"to": to})
    count = new("ReduceSum", [counted], loss, {"keepdims": 0})
    new("Div", [total, count], loss)
    return ops


def _softmax_steps(op: Operation, **properties: Any) -> list[Operation]:
    """
    Returns the steps that compute the sum of cross-entropies from logits and labels.
    `properties` are properties of the sum (`divisor`, `ignore_index`).
    """
    scores, labels = op.operands
    maximum = LogitMaximumOp(scores)
    total = ExponentialSumOp(scores, maximum.maximum)
    chosen = LabelLogitOp(scores, labels)
    loss = CrossEntropySumOp(
        *(maximum.maximum, total.total, chosen.chosen, labels),
        classes=ENTRIES.of(op.attributes) or shape_of(scores)[-1],
        **properties,
    )
    return _as_narrow_as(op, [maximum, total, chosen, loss])


def _as_narrow_as(op: Operation, parts: list[Operation]) -> list[Operation]:
    """
    Marks the ops `parts` if the model computes the loss `op`, which they compute, in 16
    bits. Returns `parts`.
    """
    if is_narrow_loss(op):
        for part in parts:
            part.attributes[NARROW_LOSS] = UnitAttr()
    return parts


@local_form("onnx.NegativeLogLikelihoodLoss", "onnx.SoftmaxCrossEntropyLoss")
def label_loss_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for a mean loss: the mean over the labels on this device,
    times the number of these labels as a fraction of all labels.
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


@decomposition("train.cross_entropy")
def cross_entropy_in_steps(op: Operation) -> list[Operation]:
    """
    Decomposes a cross-entropy into four steps: for each row of logits, the maximum, the
    sum of the exponentials and the logit of the label; then the sum over labels.
    """
    assert isinstance(op, CrossEntropyOp)
    return in_scope_of(op, _softmax_steps(op, **op.properties))


@decomposition("train.cross_entropy_grad")
def cross_entropy_gradient_in_steps(op: Operation) -> list[Operation]:
    """
    Decomposes the gradient of a cross-entropy into steps that can split classes: the
    maximum and the sum of exponentials of each row, which the loss has computed too,
    and the gradient of each class.
    """
    assert isinstance(op, CrossEntropyGradOp)
    maximum = LogitMaximumOp(op.logits)
    total = ExponentialSumOp(op.logits, maximum.maximum)
    gradient = CrossEntropyPartGradOp(
        *(op.dloss, op.logits, op.labels, maximum.maximum, total.total),
        **op.properties,
    )
    return in_scope_of(op, _as_narrow_as(op, [maximum, total, gradient]))


ELSEWHERE, IGNORED = -1, -2
"""
The values that stand, in a local form, for a label that another device holds and for a
label that is ignored.
"""


def _local_labels(
    context: LocalContext, classes: int, labels: SSAValue, ignored: int | None
) -> tuple[LocalBuilder, SSAValue]:
    """
    Returns the labels as indices into this device's classes, and the builder with the
    ops that compute them.
    """
    builder = LocalBuilder(context)
    _, local = locate(builder, classes, labels, from_end=False, elsewhere=ELSEWHERE)
    if ignored is not None:
        sizes = shape_of(labels)
        number = np.array(ignored, numpy_dtype(element_type(labels)))
        operands = [labels, builder.constant(number)]
        equal = builder.emit("Equal", operands, TensorType(i1, sizes))
        operands = [equal, builder.constant(np.array(IGNORED, np.int64)), local]
        local = builder.emit("Where", operands, TensorType(i64, sizes))
    return builder, local


def _split_classes(context: LocalContext, logits: int) -> int | None:
    """
    Returns the factor of the classes if they are split, else None. `logits` is the
    index of the operand with the logits.
    """
    (classes,) = context.rule.operands[logits][-1] or (None,)
    if classes is None or context.parts_of(classes) == 1:
        return None
    return classes


@local_form("train.label_logit")
def label_logit_held(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for the look-up of each label's logit. The look-up covers
    this device's classes only.
    """
    classes = _split_classes(context, 0)
    if classes is None:
        return [context.same_op()]
    logits, labels = context.operands
    builder, local = _local_labels(context, classes, labels, None)
    return [*builder.ops, context.same_op([logits, local])]


@local_form("train.cross_entropy_part_grad")
def gradient_held(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for the gradient of a cross-entropy. It subtracts 1 only at
    labels among this device's classes.
    """
    op = context.op
    assert isinstance(op, CrossEntropyPartGradOp)
    classes = _split_classes(context, 1)
    if classes is None:
        return [context.same_op()]
    dloss, logits, labels, *statistics = context.operands
    builder, local = _local_labels(context, classes, labels, op.ignored)
    gradient = context.same_op([dloss, logits, local, *statistics])
    if op.ignored is not None:
        gradient.properties["ignore_index"] = IntegerAttr(IGNORED, i64)
    return [*builder.ops, gradient]
