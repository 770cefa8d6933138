"""Images that become larger in the course of a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import EXACT, SAMPLES, Plain, Trained, check
from torch import nn

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(p=2, k=2),
]


class Pooled(nn.Module):
    """Convolutions of images of any size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.GroupNorm(2, 8), nn.SiLU()),
            *(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.SiLU()),
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.net(x)).flatten(1))


def sizes(side: Plain) -> Trained:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (SAMPLES,), generator=generator)
    module = side.make(Pooled(), side.data(0, 3, 8, 8), loss="cross_entropy")
    optimizer = side.optimizer(module.parameters())
    losses: list[float] = []
    for step, size in enumerate((8, 8, 12, 12, 16)):
        x = side.data(step, 3, size, size)
        optimizer.zero_grad()
        loss = side.loss(module, F.cross_entropy, x, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    module.eval()
    with torch.no_grad():
        x = side.data(9, 3, 14, 14)
        losses.append(side.loss(module, F.cross_entropy, x, labels).item())
    return Trained(losses, [module])


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_image_sizes(plan: dict[str, Any]) -> None:
    check(__file__, "sizes", EXACT, plan)
