"""What the zoo holds: a module with example inputs and the loss that it is trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree

BATCH, LENGTH, WORDS = 4, 8, 64

Loss = Literal["cross_entropy", "mse", "none"]


@dataclass(frozen=True)
class ZooModel:
    """
    A module and example inputs by name, and what is trained: the `loss` of the result with
    index `output`; with "none" the module computes it.

    `normalises` says that the module has batch normalisation, which is then in training
    mode in trainings.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    loss: Loss = "cross_entropy"
    output: int = 0

    @property
    def normalises(self) -> bool:
        """Whether results depend on the statistics of the batch in training."""
        kinds = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]
        return any(isinstance(part, kinds) for part in self.module.modules())

    def mode(self, training: bool) -> None:
        """
        Sets the mode of batch normalisation; every other part is in evaluation mode, so
        that nothing is dropped.
        """
        self.module.eval()
        kinds = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]
        for part in self.module.modules():
            if isinstance(part, kinds):
                part.train(training)

    def results(self, inputs: dict[str, Tensor] | None = None) -> list[Tensor]:
        """Returns the tensors that the module gives, in the order of an exported program."""
        found = _pytree.tree_leaves(self.module(**(inputs or self.inputs)))
        return [value for value in found if isinstance(value, Tensor)]

    def labels(self) -> Tensor | None:
        """Returns random labels for the loss; None where the module computes it."""
        if self.loss == "none":
            return None
        with torch.no_grad():
            like = self.results()[self.output]
        draw = torch.Generator().manual_seed(1)
        if self.loss == "mse":
            return torch.randn(like.shape, generator=draw).to(like.dtype)
        return torch.randint(0, like.shape[-1], like.shape[:-1], generator=draw)

    def loss_of(self, inputs: dict[str, Tensor], labels: Tensor | None) -> Tensor:
        """Returns the loss of these inputs and labels."""
        prediction = self.results(inputs)[self.output]
        if labels is None:
            return prediction
        if self.loss == "mse":
            return F.mse_loss(prediction, labels)
        return F.cross_entropy(prediction.flatten(0, -2), labels.flatten())


@dataclass(frozen=True)
class Family:
    """
    A family of models: its name, where its code is from, and what makes a small model of it.

    With `double`, model and program compute with 64-bit floats: where batch norms over few
    numbers follow each other, each amplifies the rounding of those before, until two orders of
    a sum in 32 bits give other losses.
    """

    name: str
    source: str
    make: Callable[[], ZooModel]
    double: bool = False

    def made(self) -> ZooModel:
        """
        Returns the model, the same every time. Parameters that begin as zeros or ones get
        other values, so that a mix-up of two of them shows.
        """
        torch.manual_seed(0)
        model = self.make()
        with torch.no_grad():
            for parameter in model.module.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        model.mode(training=False)
        return _in_64_bits(model) if self.double else model


def _in_64_bits(model: ZooModel) -> ZooModel:
    """
    Returns the model in 64 bits. Epsilons are those that 32 bits can say, as ONNX holds
    them.
    """
    model.module.double()
    for part in model.module.modules():
        if isinstance(epsilon := getattr(part, "eps", None), float):
            vars(part)["eps"] = float(np.float32(epsilon))
    inputs = {
        name: value.double() if value.is_floating_point() else value
        for name, value in model.inputs.items()
    }
    return replace(model, inputs=inputs)


FAMILIES: dict[str, Family] = {}
"""All families by name, as the modules of this package register them."""

Make = Callable[[], ZooModel]


def family(source: str, name: str | None = None) -> Callable[[Make], Make]:
    """Registers a family under the name of the function that makes its model."""

    def register(make: Make) -> Make:
        own = name or make.__name__
        FAMILIES[own] = Family(own, source, make)
        return make

    return register


def words(length: int = LENGTH, least: int = 3) -> Tensor:
    """Returns a batch of tokens, none of which is one of the first few special ones."""
    return torch.randint(least, WORDS, (BATCH, length))


def images(size: int, channels: int = 3) -> Tensor:
    """Returns a batch of square images."""
    return torch.randn(BATCH, channels, size, size)
