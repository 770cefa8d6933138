"""The optimizers that `differentiate` puts behind the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist import NAME
from distir.gradients.training_step import TrainingStep
from distir.program import argument_names

OPTIMIZERS = ("adamw", "adam", "sgd", "none")


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer and its settings, with PyTorch's meanings."""

    name: str
    learning_rate: float
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip: float


def add_updates(
    step: TrainingStep,
    gradients: Sequence[tuple[SSAValue, SSAValue]],
    options: OptimizerOptions,
) -> list[tuple[SSAValue, dict[str, Attribute]]]:
    """Adds the update of each parameter; gives the step's further results."""
    names = dict(zip(step.block.args, argument_names(step.function), strict=True))
    if options.name == "none":
        return [
            (gradient, {NAME: StringAttr(f"{names[parameter]}.gradient")})
            for parameter, gradient in gradients
        ]
    raise NotImplementedError
