"""An epoch whose last batch has fewer samples than the others: 3 of 8, then 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import Plain, Trained, Training, cases, check, layers
from support.texts import Language, cross_entropy, text

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(d=2, zero=3),
    dict(t=2),
    dict(p=2, k=2),
    dict(d=2, k=2),
    dict(d=2, t=2),
    dict(d=4, zero=1),
    dict(d=2, p=2, k=2),
]

BATCHES = (8, 3, 8, 1, 3)


def language(side: Plain) -> Trained:
    """A language model, whose mean is over the words that count."""
    model = side.make(Language(), text(8, 6, 0)[0], loss="cross_entropy")
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for seed, samples in enumerate(BATCHES):
        loss = side.loss(model, cross_entropy, *text(samples, 6, seed))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, [model])


def regression(side: Plain) -> Trained:
    """A loss of one's own over rows of numbers, with labels in several tensors."""

    def loss_of(output: torch.Tensor, labels: dict[str, torch.Tensor]) -> torch.Tensor:
        near = (output - labels["target"]).square().mean(1)
        return (labels["weight"] * near + F.softplus(output).mean(1)).mean()

    def labels(rows: int) -> dict[str, torch.Tensor]:
        return {
            "target": side.data(rows, 4, rows=rows),
            "weight": side.data(rows, rows=rows) ** 2,
        }

    module = layers(0, 6, 12, 4)
    model = side.make(module, side.data(0, 6), loss=loss_of, labels=labels(8))
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for seed, samples in enumerate(BATCHES):
        x = side.data(seed, 6, rows=samples)
        loss = side.loss(model, loss_of, x, labels(samples))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, [model])


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_language(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "language", training, plan)


@pytest.mark.parametrize("training, plan", cases(PLANS[:5]), ids=str)
def test_regression(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "regression", training, plan)


def outside(side: Plain) -> Trained:
    """A loss of the script for each micro-batch: of 3 rows of a rank, 2 and 1."""
    model = side.make(layers(0, 6, 12, 12, 4), side.data(0, 6))
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for seed, samples in enumerate((8, 6, 8, 2, 6)):
        x, y = side.data(seed, 6, rows=samples), side.data(9 + seed, 4, rows=samples)
        found = side.step_outside(model, F.mse_loss, side.part(x), side.part(y))
        losses.append(found)
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, [model])


OUTSIDE: list[dict[str, Any]] = [
    dict(d=2, p=2, k=2),
    dict(p=2, k=4, schedule="zb-h1"),
    dict(d=2, k=2, zero=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(OUTSIDE), ids=str)
def test_losses_of_micro_batches(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "outside", training, plan)
