"""The losses that `differentiate` appends to a program."""

from __future__ import annotations

from collections.abc import Container
from math import prod

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, i64
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist_attributes import GRADIENT_OF, NAME, ROLE
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.checks import accumulation_type
from distir.dialects.train_ops.losses import CrossEntropyOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, shape
from distir.gradients.training_step import TrainingStep
from distir.program import LOSS, argument_roles, describe, erase_dead, return_op
from distir.program.functions import erase_unreachable


def prediction_of(step: TrainingStep, output: int) -> SSAValue:
    """
    Returns the program's result at index `output`, from which the loss is computed.
    Raises DistIRError if the program has no such result.
    """
    returned = return_op(step.function)
    if not 0 <= output < len(returned.operands):
        raise DistIRError(
            f"differentiate: the program has {len(returned.operands)} results, there is "
            f"no output {output}"
        )
    return returned.operands[output]


def leave_loss(
    module: ModuleOp, kind: str, output: int, ignore_index: int | None = None
) -> None:
    """
    Makes a loss the only result of a forward program. The loss is computed from result
    `output` and labels, which become a new argument. With the kind "none", result
    `output` itself is the loss. Raises DistIRError if result `output` does not suit the
    kind of loss.
    """
    step = TrainingStep(module)
    prediction = prediction_of(step, output)
    loss = add_loss(kind, output, prediction, step, ignore_index)
    step.finish([(loss, {ROLE: ROLE.attr(LOSS), NAME: NAME.attr("loss")})])
    erase_dead(step.block)
    erase_unreachable(module)


def add_gradients_of_results(
    step: TrainingStep, active: Container[SSAValue]
) -> dict[SSAValue, SSAValue]:
    """
    Adds an argument for the gradient of each result of the program that is in `active`.
    `active` are the values that depend differentiably on the trained values. Maps each
    of these results to its gradient. Raises DistIRError if no result is in `active`.
    """
    returned = [(value, NAME.of(own)) for value, own in step.outputs()]
    roles = argument_roles(step.function)
    position = max((i + 1 for i, r in enumerate(roles) if r == "input"), default=0)
    found: dict[SSAValue, SSAValue] = {}
    for value, name in returned:
        if value not in active:
            continue
        assert name is not None
        gradient = step.argument(
            value.type,
            "label",
            f"{name}.gradient",
            {GRADIENT_OF: GRADIENT_OF.attr(name)},
            position=position,
        )
        position += 1
        if value in found:  # the program returns it twice
            build = GradientBuilder(step.insert, StringAttr("loss"))
            gradient = build.onnx("Add", found[value], gradient)
        found[value] = gradient
    if not found:
        raise DistIRError(
            "differentiate: no result of the program is a float that is computed from a "
            "parameter, or an input, of which gradients are wanted; choose others"
        )
    return found


def described(output: int, value: SSAValue) -> str:
    """
    Returns the words for result `output` in messages: its index and the op that
    computes it.
    """
    text = f"result {output}"
    if isinstance(value.owner, Operation):
        text += f" of {describe(value.owner)}"
    return text


def add_loss(
    kind: str,
    output: int,
    prediction: SSAValue,
    step: TrainingStep,
    ignore_index: int | None = None,
) -> SSAValue:
    """
    Adds an argument for labels and the ops of the loss, in the scope "loss", and
    returns the loss. With the kind "none", returns the prediction. In a cross-entropy,
    the mean leaves out labels that equal `ignore_index`. Losses of 16-bit floats are
    computed in 32 bits. Raises DistIRError if `ignore_index` or the prediction does not
    suit the kind of loss.
    """
    if ignore_index is not None and kind != "cross_entropy":
        raise DistIRError(
            f"differentiate: ignore_index is a class of cross_entropy, and the loss is "
            f"{kind}; leave it out"
        )
    if kind == "none":
        return prediction
    assert isinstance(prediction.type, TensorType)
    roles = argument_roles(step.function)
    position = max((i + 1 for i, r in enumerate(roles) if r == "input"), default=0)
    build = GradientBuilder(step.insert, StringAttr("loss"))
    sizes = shape(prediction)
    if kind == "mse":
        wide = accumulation_type(prediction)
        target = step.argument(
            TensorType(wide, sizes), "label", "labels", position=position
        )
        error = build.onnx("Sub", build.cast(prediction, target), target)
        # Not a ReduceMean, whose gradient has one number for each element, while that of
        # the sum of squares is a multiple of the error, part by part.
        total = build.onnx("ReduceSumSquare", error, keepdims=0)
        return build.onnx("Div", total, build.scalar(prod(sizes), total))
    if len(sizes) < 2:
        raise DistIRError(
            f"differentiate: cross_entropy needs logits [..., classes], but "
            f"{described(output, prediction)} has type {prediction.type}; choose another "
            f"output or loss"
        )
    labels = step.argument(
        TensorType(i64, sizes[:-1]), "label", "labels", position=position
    )
    if ignore_index is None:
        op = CrossEntropyOp(prediction, labels, divisor=prod(sizes[:-1]))
        return build.add(op).results[0]
    # The divisor depends on the labels: two sums, partial if the batch is split.
    op = CrossEntropyOp(prediction, labels, ignore_index=ignore_index)
    total = build.add(op).results[0]
    ignored = build.onnx("Equal", labels, build.constant(np.array(ignore_index)))
    kept = build.onnx("Not", ignored)
    number = onnx_element_type(element_type(total))
    count = build.onnx("ReduceSum", build.onnx("Cast", kept, to=number), keepdims=0)
    return build.onnx("Div", total, count)
