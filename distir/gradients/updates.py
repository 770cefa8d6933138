"""
The optimizer's part of a training step: clipping, and the update of each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from xdsl.dialects.builtin import BFloat16Type, Float16Type, StringAttr
from xdsl.ir import BlockArgument, SSAValue

from distir.dialects.dist_attributes import NAME, OF, ROLE
from distir.dialects.tensors import element_type
from distir.errors import DistIRError, did_you_mean
from distir.gradients.clipping import clipped
from distir.gradients.options import OptimizerOptions
from distir.gradients.parameter_update import (
    Gradient,
    ParameterUpdate,
    Result,
    optimizer_called,
    updated,
    with_master,
)
from distir.gradients.rule import GradientBuilder
from distir.gradients.training_step import TrainingStep
from distir.program import GRADIENT


def add_updates(
    step: TrainingStep,
    gradients: Sequence[Gradient],
    options: OptimizerOptions,
) -> list[Result]:
    """
    Adds the update of each parameter to the step, and returns the new parameters and
    states as results of the step. With the optimizer "none", returns the gradients as
    results. Raises DistIRError if the optimizer cannot update a parameter.
    """
    names: dict[SSAValue, str] = dict(zip(step.block.args, step.names, strict=True))
    if options.optimizer == "none":
        found = [_gradient(value, names[parameter]) for parameter, value in gradients]
        return found + _counted(step, step.counter())
    _check_by_adamw(options, [names[parameter] for parameter, _ in gradients])
    if options.clip > 0:
        build = GradientBuilder(step.insert, None)
        values = clipped([gradient for _, gradient in gradients], options.clip, build)
        gradients = [(p, g) for (p, _), g in zip(gradients, values, strict=True)]
    # A program with dropout counts steps already.
    counter = step.counter()
    if counter is None and optimizer_called(options.optimizer).counts_steps:
        counter = step.add_counter()
    results = _counted(step, counter)
    parameters: list[Result] = []
    for parameter, gradient in gradients:
        name = names[parameter]
        new, states = _one_update(step, name, parameter, gradient, counter, options)
        parameters.append(new)
        results += states
    return parameters + results


def _check_by_adamw(options: OptimizerOptions, known: Sequence[str]) -> None:
    """
    Raises DistIRError if the option `by_adamw` is used without Muon, or if one of its
    patterns matches none of the names `known`.
    """
    if options.by_adamw and options.optimizer != "muon":
        raise DistIRError(
            f"differentiate: by_adamw names parameters that muon leaves to adamw, and the "
            f"optimizer is {options.optimizer}; leave it out"
        )
    for pattern in options.by_adamw:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise DistIRError(
                f"differentiate: by_adamw: no parameter that is trained is called "
                f"{pattern!r}; {did_you_mean(pattern, known)}choose a name of one"
            )


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
    chosen = optimizer_called(options.optimizer)
    update = ParameterUpdate(
        step, name, parameter, gradient, counter, options, chosen.defaults
    )
    is_narrow = isinstance(element_type(parameter), Float16Type | BFloat16Type)
    if not (is_narrow and options.master_weights):
        return updated(chosen.update(update), name), update.states
    with_master(update)
    new = chosen.update(update)
    update.states.append(updated(new, f"{name}.master"))
    return updated(update.build.cast(new, parameter), name), update.states
