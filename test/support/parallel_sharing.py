"""Modules over one encoder, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from support.scenarios import layers


class Task(nn.Module):
    """An encoder, which may belong to other tasks too, and a head."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, layers(1, 16, 24, 24, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def encoder() -> nn.Module:
    return nn.Sequential(layers(0, 6, 32, 16), nn.BatchNorm1d(16))


def refused() -> dict[str, str]:
    """Returns errors of modules that cannot share parameters."""
    shared, x = encoder(), torch.randn(4, 6)

    def told(module: nn.Module, others: list[Any], **options: Any) -> str:
        try:
            parallelize(module, (x,), loss="mse", shared_with=others, **options)
        except DistIRError as error:
            return str(error)
        return "no error"

    one = parallelize(Task(shared, 3), (x,), loss="mse", d=2, zero=3)
    return {
        "strangers": told(Task(encoder(), 3), [one], d=2, zero=3),
        "options": told(Task(shared, 2), [one], t=2),
        "without ZeRO": told(Task(shared, 2), [one], d=2),
    }
