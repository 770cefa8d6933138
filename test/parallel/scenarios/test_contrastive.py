"""Two towers with a loss over all pairs of the batch, and a temperature of the script."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import (
    SAMPLES,
    STEPS,
    Plain,
    Trained,
    Training,
    cases,
    check,
    layers,
)
from torch import nn

IMAGES, TEXTS, WIDTH = 8, 6, 4

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2, t=2, zero=1),
]


def contrastive(side: Plain) -> Trained:
    images, texts = side.data(0, IMAGES), side.data(1, TEXTS)
    towers = (
        side.make(layers(0, IMAGES, 16, WIDTH), images),
        side.make(layers(1, TEXTS, 16, WIDTH), texts),
    )
    scale = nn.Parameter(torch.ones((), dtype=side.dtype))
    parameters = [*towers[0].parameters(), *towers[1].parameters()]
    optimizer, outer = side.optimizer(parameters), side.optimizer([scale])
    losses: list[float] = []
    pairs = torch.arange(SAMPLES)
    for step in range(STEPS):
        both = zip(towers, (images + step, texts - step), strict=True)
        a, b = (side.all(t, F.normalize(t(side.part(x)), dim=-1)) for t, x in both)
        scores = scale.exp() * a @ b.t()
        loss = F.cross_entropy(scores, pairs) + F.cross_entropy(scores.t(), pairs)
        optimizer.zero_grad()
        outer.zero_grad()
        loss.backward()
        optimizer.step()
        outer.step()
        losses += [loss.item(), scale.item()]
    return Trained(losses, list(towers))


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_contrastive(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "contrastive", training, plan)
