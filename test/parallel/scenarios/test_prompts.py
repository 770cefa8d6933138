"""An encoder in front of a frozen module, and a prompt that all ranks have whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import STEPS, Plain, Trained, Training, cases, check, layers
from torch import nn

WIDTH, FEATURES = 8, 4

PLANS: list[dict[str, Any]] = [
    dict(t=2),
    dict(d=2),
    dict(d=2, zero=3),
    dict(d=2, t=2, zero=1),
]


class Prompted(nn.Module):
    """Attention to a prompt that is the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.key = layers(1, FEATURES, FEATURES)
        self.value = layers(2, FEATURES, FEATURES)

    def forward(self, x: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        both = torch.cat([prompt.expand(len(x), -1, -1), x[:, None]], 1)
        scores = x[:, None] @ self.key(both).transpose(1, 2)
        return (scores.softmax(-1) @ self.value(both))[:, 0]


def prompts(side: Plain) -> Trained:
    x, y = side.data(0, WIDTH), side.data(1, FEATURES)
    prompt = nn.Parameter(side.data(2, FEATURES)[None, :2].clone())
    encoder = side.make(layers(0, WIDTH, 16, FEATURES), x)
    frozen = side.make(
        Prompted().requires_grad_(False), y.clone().requires_grad_(), prompt
    )
    optimizer, outer = side.optimizer(encoder.parameters()), side.optimizer([prompt])
    losses: list[float] = []
    for _ in range(STEPS):
        loss = F.mse_loss(frozen(encoder(side.part(x)), prompt), side.part(y))
        optimizer.zero_grad()
        outer.zero_grad()
        loss.backward()
        optimizer.step()
        outer.step()
        losses += [side.mean(loss), prompt.sum().item()]
    return Trained(losses, [encoder], {"prompt": prompt.detach()})


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_prompts(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "prompts", training, plan)
