"""The optimizers that `differentiate` appends, and gradient clipping."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import BFloat16Type, Float16Type, StringAttr, TensorType, f32
from xdsl.ir import Attribute, BlockArgument, SSAValue

from distir.dialects.dist_attributes import INITIAL, NAME, OF, REPACKED, ROLE, UPDATES
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.optimizers import AdamOp, AdamWOp, SgdOp, SquareSumOp
from distir.gradients.options import OptimizerOptions
from distir.gradients.rule import GradientBuilder, shape
from distir.gradients.training_step import TrainingStep
from distir.program import GRADIENT

EPSILON = 1e-6
"""
PyTorch's constant in gradient clipping: gradients of norm n are multiplied by `max_norm
/ (n + EPSILON)`.
"""


def clipped(
    gradients: Sequence[SSAValue], max_norm: float, build: GradientBuilder
) -> list[SSAValue]:
    """
    Returns the gradients times `min(1, max_norm / (norm + 1e-6))`, where `norm` is the
    norm of all gradients together. Squares are summed in f32 (f64 for f64 gradients).
    """
    if not gradients:
        return []
    norm = build.onnx("Sqrt", sum_of_squares(gradients, build))
    bound = build.onnx("Add", norm, build.scalar(EPSILON, norm))
    ratio = build.onnx("Div", build.scalar(max_norm, norm), bound)
    factor = build.onnx("Min", ratio, build.scalar(1.0, norm))
    return [build.onnx("Mul", g, _as(factor, g, build)) for g in gradients]


def sum_of_squares(gradients: Sequence[SSAValue], build: GradientBuilder) -> SSAValue:
    """
    Returns the sum of the squares of all elements of all gradients. There must be at
    least one gradient.
    """
    squares = [build.add(SquareSumOp(g)).results[0] for g in gradients]
    wide = [_as(s, squares[0], build) for s in squares]
    return build.onnx("Sum", *wide)


def _as(value: SSAValue, like: SSAValue, build: GradientBuilder) -> SSAValue:
    """Returns `value` cast to the element type of `like`."""
    target = element_type(like)
    if element_type(value) == target:
        return value
    return build.onnx("Cast", value, to=onnx_element_type(target))


Result = tuple[SSAValue, dict[str, Attribute]]
"""A result of the training step, and its attributes."""

Gradient = tuple[SSAValue, SSAValue]
"""A parameter and its gradient."""


def add_updates(
    step: TrainingStep,
    gradients: Sequence[Gradient],
    options: OptimizerOptions,
) -> list[Result]:
    """
    Adds the update of each parameter to the step, and returns the results that the step
    gets. With the optimizer "none", these are the gradients.
    """
    names: dict[SSAValue, str] = dict(zip(step.block.args, step.names, strict=True))
    if options.optimizer == "none":
        found = [_gradient(value, names[parameter]) for parameter, value in gradients]
        return found + _counted(step, step.counter())
    if options.clip > 0:
        build = GradientBuilder(step.insert, None)
        values = clipped([gradient for _, gradient in gradients], options.clip, build)
        gradients = [(p, g) for (p, _), g in zip(gradients, values, strict=True)]
    # A program with dropout counts steps already.
    counter = step.counter()
    if counter is None and options.optimizer != "sgd":
        counter = step.add_counter()
    results = _counted(step, counter)
    parameters: list[Result] = []
    for parameter, gradient in gradients:
        new, states = _one_update(
            step, names[parameter], parameter, gradient, counter, options
        )
        parameters.append(new)
        results += states
    return parameters + results


def _counted(step: TrainingStep, counter: SSAValue | None) -> list[Result]:
    """
    Returns the updated step counter as a list of one result, or an empty list if there
    is no counter.
    """
    if not isinstance(counter, BlockArgument):
        return []
    build = GradientBuilder(step.insert, None)
    one = build.constant(np.array(1, np.int64))
    return [updated(build.onnx("Add", counter, one), step.names[counter.index])]


def _gradient(value: SSAValue, parameter: str) -> Result:
    role, name = StringAttr(GRADIENT), StringAttr(f"{parameter}.gradient")
    return value, {ROLE: role, NAME: name, OF: OF.attr(parameter)}


def updated(value: SSAValue, name: str) -> Result:
    """
    Returns `value` as a result that replaces the argument called `name` in the next
    step.
    """
    return value, {NAME: NAME.attr(name), UPDATES: UPDATES.attr(name)}


def _one_update(
    step: TrainingStep,
    name: str,
    parameter: SSAValue,
    gradient: SSAValue,
    counter: SSAValue | None,
    options: OptimizerOptions,
) -> tuple[Result, list[Result]]:
    """
    Adds the update of one parameter, and returns the new parameter and the new states.
    A 16-bit parameter gets an f32 master copy, unless the option `master_weights` is
    off.
    """
    assert isinstance(parameter.type, TensorType)
    build = GradientBuilder(step.insert, None)
    sizes, element = shape(parameter), parameter.type.element_type
    narrow = options.master_weights and isinstance(element, Float16Type | BFloat16Type)
    wide = TensorType(f32 if narrow else element, sizes)

    def state(kind: str, **attributes: Attribute) -> SSAValue:
        own = {OF: OF.attr(name), **attributes}
        repacked = step.repacked.get(name)
        if repacked is not None:
            own[REPACKED] = repacked.renamed(f".{kind}").attribute
        return step.argument(wide, "state", f"{name}.{kind}", own)

    source = parameter
    if narrow:
        source = state("master", **{INITIAL: INITIAL.attr("copy")})
    states: list[Result] = []
    if options.optimizer == "sgd":
        buffer = None
        if options.momentum > 0:
            buffer = state("momentum")
        op = SgdOp(
            source,
            gradient,
            buffer,
            learning_rate=options.learning_rate,
            weight_decay=options.decay,
            momentum=options.momentum if options.momentum > 0 else None,
        )
        build.add(op)
        if op.new_buffer is not None:
            states.append(updated(op.new_buffer, f"{name}.momentum"))
        new = op.new_parameter
    else:
        assert counter is not None
        op = {"adam": AdamOp, "adamw": AdamWOp}[options.optimizer](
            source,
            gradient,
            state("exp_avg"),
            state("exp_avg_sq"),
            counter,
            learning_rate=options.learning_rate,
            weight_decay=options.decay,
            beta1=options.beta1,
            beta2=options.beta2,
            epsilon=options.epsilon,
        )
        build.add(op)
        states.append(updated(op.new_exp_avg, f"{name}.exp_avg"))
        states.append(updated(op.new_exp_avg_sq, f"{name}.exp_avg_sq"))
        new = op.new_parameter
    if narrow:
        states.append(updated(new, f"{name}.master"))
        new = build.onnx("Cast", new, to=onnx_element_type(element))
    return updated(new, name), states
