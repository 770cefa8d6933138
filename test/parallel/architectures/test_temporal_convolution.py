"""Causal convolutions with gaps, whose weights are normalised (a WaveNet, a TCN)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import EXACT, STEPS, Plain, Trained, check
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

CHANNELS, LENGTH = 4, 20

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(p=2, k=2),
]


class Block(nn.Module):
    """Two causal convolutions beside a way around them."""

    def __init__(self, inputs: int, outputs: int, gap: int) -> None:
        super().__init__()
        self.gap = gap
        self.first = weight_norm(nn.Conv1d(inputs, outputs, 2, dilation=gap))
        self.second = weight_norm(nn.Conv1d(outputs, outputs, 2, dilation=gap))
        same = inputs == outputs
        self.around = nn.Identity() if same else nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(F.pad(x, (self.gap, 0))))
        y = torch.relu(self.second(F.pad(y, (self.gap, 0))))
        return torch.relu(y + self.around(x))


def convolutions(side: Plain) -> Trained:
    torch.manual_seed(0)
    blocks = [Block(8 if i else CHANNELS, 8, 2**i) for i in range(3)]
    x, y = side.data(0, CHANNELS, LENGTH), side.data(1, CHANNELS, LENGTH)
    net = nn.Sequential(*blocks, nn.Conv1d(8, CHANNELS, 1))
    module = side.make(net, x, loss=F.smooth_l1_loss)
    optimizer = side.optimizer(module.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = side.loss(module, F.smooth_l1_loss, x + step, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, [module])


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_temporal_convolution(plan: dict[str, Any]) -> None:
    check(__file__, "convolutions", EXACT, plan)
