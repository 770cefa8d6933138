"""An exponential moving average of parameters: PyTorch's own, and one by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import STEPS, Plain, Trained, Training, cases, check, layers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

WIDTH, CLASSES, DECAY = 8, 4, 0.6

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2),
    dict(p=2),
    dict(d=2, t=2, zero=1),
]


def moving_average(side: Plain) -> Trained:
    x = side.data(0, WIDTH)
    labels = torch.arange(len(x)) % CLASSES
    model = side.make(layers(0, WIDTH, 16, CLASSES), x, loss="cross_entropy")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    by_hand = copy.deepcopy(model).requires_grad_(False)
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        loss = side.loss(model, F.cross_entropy, x + step, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        average.update_parameters(model)
        with torch.no_grad():
            pairs = zip(by_hand.parameters(), model.parameters(), strict=True)
            for kept, new in pairs:
                kept.mul_(DECAY).add_(new, alpha=1 - DECAY)
    # The average is evaluated, and the model goes on.
    average.eval()
    by_hand.eval()
    with torch.no_grad():
        for module in (average, by_hand):
            losses.append(side.mean(module(side.part(x)).square().mean()))
    loss = side.loss(model, F.cross_entropy, x, labels)
    return Trained([*losses, loss.item()], [model, average.module, by_hand])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_moving_average(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "moving_average", training, plan)
