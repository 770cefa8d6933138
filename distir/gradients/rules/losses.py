"""Gradient rules of losses."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist_attributes import NARROW_LOSS
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype, onnx_element_type
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.checks import accumulation_type
from distir.dialects.train_ops.losses import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    CtcLossGradOp,
    CtcLossOp,
    is_narrow_loss,
)
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.program import describe


@gradient_rule("train.cross_entropy")
def cross_entropy(
    op: CrossEntropyOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """Gradient rule of `train.cross_entropy`: a single op, which takes the logits."""
    (dloss,) = gradients
    assert dloss is not None
    grad = CrossEntropyGradOp(dloss, op.logits, op.labels, **op.properties)
    return [build.result(grad), None]


def _checked(op: OnnxOp, gradients: Gradients) -> SSAValue:
    """
    Returns the gradient of the loss that `op` computes. Raises DistIRError if the op
    has weights of classes, if its second result has a gradient, or if the shape of the
    labels does not suit the scores.
    """
    _check_labels(op)
    if op.input(2) is not None:
        raise DistIRError(
            f"{describe(op)} has no gradient rule for weights of classes; export the "
            f"model without its loss, or let PyTorch differentiate it "
            f"(distir.frontends.torch.training.import_training_step)"
        )
    dloss, *others = gradients
    if dloss is None or any(g is not None for g in others):
        raise DistIRError(
            f"{describe(op)} has no gradient rule for its second result; take the loss "
            f"from the first, or the logarithms from a LogSoftmax"
        )
    return dloss


def _check_labels(op: OnnxOp) -> None:
    scores, labels = op.operands[:2]
    batch, _, *rest = shape(scores)
    if shape(labels) != (batch, *rest):
        expected = "x".join(str(n) for n in (batch, *rest))
        raise DistIRError(
            f"{describe(op)}: its labels have type {labels.type}, but scores of type "
            f"{scores.type} need a label for each of {expected}; give labels of that shape"
        )


def _kept(op: OnnxOp, build: GradientBuilder) -> SSAValue | None:
    """
    Returns a Boolean tensor that is false for the labels that the loss ignores. Returns
    None if the loss ignores no label.
    """
    ignored = op.attribute("ignore_index")
    if ignored is None:
        return None
    labels = op.operands[1]
    label = build.constant(np.array(ignored, numpy_dtype(element_type(labels))))
    return build.onnx("Not", build.onnx("Equal", labels, label))


def _per_label(
    op: OnnxOp, dloss: SSAValue, kept: SSAValue | None, build: GradientBuilder
) -> SSAValue:
    """
    Returns the gradient of each label's loss, computed from the gradient `dloss` of the
    op's result. It is a scalar, the same for all labels, unless the op has no
    reduction.
    """
    if op.attribute("reduction") != "mean":
        return dloss
    if kept is None:
        count = build.scalar(prod(shape(op.operands[1])), dloss)
    else:
        number = onnx_element_type(element_type(dloss))
        count = build.onnx("ReduceSum", build.onnx("Cast", kept, to=number), keepdims=0)
    return build.onnx("Div", dloss, count)


@gradient_rule("onnx.SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of SoftmaxCrossEntropyLoss: `train.cross_entropy_grad` with the
    classes moved to the last dimension.
    """
    dloss = _checked(op, gradients)
    scores, labels = op.operands
    wide = accumulation_type(scores)
    if element_type(dloss) != wide:
        dloss = build.onnx("Cast", dloss, to=onnx_element_type(wide))
    each = _per_label(op, dloss, _kept(op, build), build)
    rank = len(shape(scores))
    moved, back = scores, None
    if rank > 2:
        moved = build.onnx("Transpose", scores, perm=[0, *range(2, rank), 1])
        back = [0, rank - 1, *range(1, rank - 1)]
    ignored = op.attribute("ignore_index")
    is_scalar = op.attribute("reduction") != "none"
    dtotal = each if is_scalar else build.scalar(1.0, each)
    grad = CrossEntropyGradOp(dtotal, moved, labels, ignore_index=ignored)
    if is_narrow_loss(op):
        grad.attributes[NARROW_LOSS] = UnitAttr()
    dscores = build.result(grad)
    if not is_scalar:
        last = build.onnx("Unsqueeze", each, build.integers([rank - 1]))
        if element_type(last) != element_type(scores):
            number = onnx_element_type(element_type(scores))
            last = build.onnx("Cast", last, to=number)
        dscores = build.onnx("Mul", dscores, last)
    if back is not None:
        dscores = build.onnx("Transpose", dscores, perm=back)
    return [dscores, None]


@gradient_rule("onnx.NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of NegativeLogLikelihoodLoss: minus the gradient of each label's loss
    at the label's class, and 0 at other classes.
    """
    dloss = _checked(op, gradients)
    scores, labels = op.operands
    kept = _kept(op, build)
    each = _per_label(op, dloss, kept, build)
    if kept is not None:
        each = build.onnx("Where", kept, each, build.scalar(0.0, each))
    if shape(each):
        each = build.onnx("Unsqueeze", each, build.integers([1]))
    dtype = numpy_dtype(element_type(scores))
    chosen = build.onnx(
        "OneHot",
        labels,
        build.constant(np.array(shape(scores)[1], np.int64)),
        build.constant(np.array([0, -1], dtype)),
        axis=1,
    )
    return [build.onnx("Mul", chosen, each), None]


@gradient_rule("train.ctc_loss")
def loss(op: Operation, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of `train.ctc_loss`: one kernel, which computes the forward variables
    of the CTC algorithm again.
    """
    assert isinstance(op, CtcLossOp)
    (gradient,) = gradients
    if gradient is None:
        return [None] * 4
    given = (gradient, op.log_probs, op.targets, op.steps, op.labels)
    made = CtcLossGradOp(
        *given, blank=op.blank, zero_infinity=op.zero_infinity is not None
    )
    return [build.result(made), None, None, None]
