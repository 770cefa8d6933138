"""The losses that `differentiate` puts behind a program."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import SSAValue

from distir.dialects.onnx_values import onnx_element_type
from distir.dialects.train_ops.checks import element_type
from distir.dialects.train_ops.losses import CrossEntropyOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, shape
from distir.gradients.training_step import TrainingStep
from distir.program import argument_roles, return_op

LOSSES = ("cross_entropy", "mse", "none")


def add_loss(
    kind: str, output: int, step: TrainingStep, ignore_index: int | None = None
) -> SSAValue:
    """
    Adds a labels argument and the loss; gives the loss. Labels `ignore_index` do not
    count in a cross-entropy: the mean is over the others.
    """
    returned = return_op(step.function)
    if not 0 <= output < len(returned.operands):
        raise DistIRError(
            f"differentiate: the program has {len(returned.operands)} results, there is "
            f"no output {output}"
        )
    prediction = returned.operands[output]
    if kind == "none":
        return prediction
    assert isinstance(prediction.type, TensorType)
    roles = argument_roles(step.function)
    position = max((i + 1 for i, r in enumerate(roles) if r == "input"), default=0)
    build = GradientBuilder(step.insert, None)
    sizes = shape(prediction)
    if kind == "mse":
        target = step.argument(prediction.type, "label", "labels", position)
        error = build.onnx("Sub", prediction, target)
        square = build.onnx("Mul", error, error)
        axes = build.integers(range(len(sizes)))
        return build.onnx("ReduceMean", square, axes, keepdims=0)
    if len(sizes) < 2:
        raise DistIRError(
            f"differentiate: cross_entropy needs logits [..., classes], but result "
            f"{output} has type {prediction.type}"
        )
    labels = step.argument(TensorType(i64, sizes[:-1]), "label", "labels", position)
    if ignore_index is None:
        op = CrossEntropyOp(prediction, labels, prod(sizes[:-1]))
        return build.add(op).results[0]
    # The divisor depends on the labels: two sums, which a split batch makes partial.
    op = CrossEntropyOp(prediction, labels, None, ignore_index)
    total = build.add(op).results[0]
    ignored = build.onnx("Equal", labels, build.constant(np.array(ignore_index)))
    kept = build.onnx("Not", ignored)
    number = onnx_element_type(element_type(total))
    count = build.onnx("ReduceSum", build.onnx("Cast", kept, to=number), keepdims=0)
    return build.onnx("Div", total, count)
