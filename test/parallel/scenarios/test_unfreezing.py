"""Fine-tuning that unfreezes one layer after the other, from the head to the first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import Plain, Trained, Training, cases, check
from torch import nn

WIDTH, CLASSES = 8, 4

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2),
    dict(p=2),
    dict(d=2, t=2, zero=1),
]


class Layered(nn.Module):
    """Layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.norm(x))


def unfreezing(side: Plain) -> Trained:
    x = side.data(0, WIDTH)
    labels = torch.arange(len(x)) % CLASSES
    source = Layered().requires_grad_(False)
    source.head.requires_grad_(True)
    model = side.make(source, x, loss="cross_entropy")
    # A rank of a pipeline may have none of those that are trained at first.
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for stage in (None, model.norm, model.layers[2], model.layers[0]):
        if stage is not None:
            stage.requires_grad_(True)
        for step in range(2):
            loss = side.loss(model, F.cross_entropy, x + step, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        without = [n for n, p in model.named_parameters() if p.grad is None]
        frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        assert without == frozen
    return Trained(losses, [model])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_unfreezing(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "unfreezing", training, plan)
