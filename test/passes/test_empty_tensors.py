"""Tensors without elements, such as a part that a slice leaves empty, go the way of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import distir


class Layers(nn.Module):
    """Two layers, between which nothing is added to the features of each row."""

    def __init__(self, sliced: bool) -> None:
        super().__init__()
        self.sliced = sliced
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        empty = torch.zeros(len(h), 0)
        if self.sliced:
            empty = h[:, 6:].unsqueeze(1).sin().squeeze(1)
        return self.second(torch.cat([empty, h], 1))


@pytest.mark.parametrize(
    ("sliced", "options"),
    [(True, dict(d=2, t=2)), (False, dict(d=2, t=2)), (False, dict(p=2, k=2))],
)
@pytest.mark.parametrize("training", [False, True])
def test_they_are_split_and_differentiated(
    sliced: bool, options: dict[str, int], training: bool
) -> None:
    asked: dict[str, Any] = dict(loss="mse", optimizer="sgd", training=True)
    program = distir.import_model(
        Layers(sliced), (torch.randn(4, 6),), **(asked if training else {})
    )
    plan = distir.distribute(program, cluster="cpu", **options)
    assert distir.check(program, plan)
