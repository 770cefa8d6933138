"""The updates of `torch.optim` as functions, for a training step that is exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class TorchOptimizer:
    """
    An update of `torch.optim` as a function. States have the type of their parameter and
    begin as zeros; `weight_decay` None is PyTorch's default.
    """

    name: str = "sgd"
    learning_rate: float = 1e-3
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float | None = None

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states of a parameter, without that of the parameter."""
        if self.name == "sgd":
            return ("momentum",) if self.momentum > 0 else ()
        return ("exp_avg", "exp_avg_sq")

    def update(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        states: Sequence[torch.Tensor],
        step: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """Returns the new parameter and states; `step` counts from 1."""
        import torch

        default = 0.01 if self.name == "adamw" else 0.0
        decay = default if self.weight_decay is None else self.weight_decay
        if decay and self.name == "adamw":
            parameter = parameter * (1 - self.learning_rate * decay)
        elif decay:
            gradient = gradient + decay * parameter
        if self.name == "sgd":
            if not states:
                return (parameter - self.learning_rate * gradient,)
            buffer = self.momentum * states[0] + gradient
            return parameter - self.learning_rate * buffer, buffer
        assert step is not None
        count = step.to(torch.promote_types(parameter.dtype, torch.float32))
        first = self.beta1 * states[0] + (1 - self.beta1) * gradient
        second = self.beta2 * states[1] + (1 - self.beta2) * gradient * gradient
        root = (second / (1 - self.beta2**count)).sqrt() + self.epsilon
        rate = self.learning_rate / (1 - self.beta1**count)
        # Between 0-d tensors the wider type wins, here that of the count.
        change = (rate * (first / root)).to(parameter.dtype)
        return parameter - change, first, second
