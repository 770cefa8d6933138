"""A convolutional network with batch normalisation: its running statistics, and evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import (
    ADAM,
    EXACT,
    STEPS,
    Plain,
    Trained,
    Training,
    cases,
    check,
)
from torch import nn

CLASSES = 4

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(d=2),
    dict(t=2),
    dict(d=2, t=2, zero=1),
    dict(p=2),
]


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, momentum=0.3)
        self.downsample = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(found)) + self.downsample(x))


class Network(nn.Module):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = Block(4, 8, 2)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer1(x).mean((2, 3)))


def network(side: Plain, has_validation: bool = False) -> Trained:
    """Trains, with an evaluation in between."""
    torch.manual_seed(0)
    images = side.data(0, 3, 8, 8)
    model = side.make(Network(), images, loss="cross_entropy")
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    labels = torch.arange(len(images)) % CLASSES
    for step in range(STEPS):
        model.train()
        batch = side.data(step, 3, 8, 8)
        loss = side.loss(model, F.cross_entropy, batch, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            if has_validation:
                losses.append(side.loss(model, F.cross_entropy, images, labels).item())
            losses.append(side.mean(model(side.part(images)).square().mean()))
    counts = [b for n, b in model.named_buffers() if n.endswith("batches_tracked")]
    return Trained([*losses, *map(float, counts)], [model])


def validated(side: Plain) -> Trained:
    """The same, with the loss in evaluation too."""
    return network(side, has_validation=True)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS, (EXACT,)), ids=str)
def test_validation(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "validated", training, plan)


@pytest.mark.parametrize("training, plan", cases(PLANS, (EXACT, ADAM)), ids=str)
def test_batch_norm(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "network", training, plan)
