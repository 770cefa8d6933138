"""Two modules over one encoder, which learn two tasks in turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.ranks import run_ranks
from support.scenarios import Plain, Trained, Training, cases, check, layers
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(p=2, k=2),
    dict(d=2),
    dict(t=2),
    dict(d=2, t=2, zero=1),
    dict(d=2, p=2, k=2),
]


class Task(nn.Module):
    """An encoder, which may belong to other tasks too, and a head."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, layers(1, 16, 24, 24, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def encoder() -> nn.Module:
    return nn.Sequential(layers(0, 6, 32, 16), nn.BatchNorm1d(16))


def trained(side: Plain) -> Trained:
    shared = encoder()
    first, second = Task(shared, 4), Task(shared, 3)
    x = side.data(0, 6)
    one = side.make(first, x, loss="cross_entropy")
    options = dict(shared_with=[one]) if one is not first else {}
    other = side.make(second, side.data(0, 6, rows=4), loss="mse", **options)
    parameters = dict.fromkeys([*one.parameters(), *other.parameters()])
    optimizer = side.optimizer(parameters)
    losses: list[float] = []
    for step in range(6):
        x = side.data(step, 6)
        found = [side.loss(one, F.cross_entropy, x, torch.arange(8) % 4)]
        if step % 2:  # both tasks in one step
            y = side.data(10 + step, 3, rows=4)
            found.append(side.loss(other, F.mse_loss, x[4:], y))
        for loss in found:
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, [one, other])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_two_tasks(training: Training, plan: dict[str, Any]) -> None:
    """The second module has another batch size and loss; running statistics are shared too."""
    check(__file__, "trained", training, plan)


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
        "options": told(Task(shared, 2), [one], d=2),
    }


def test_modules_that_share_nothing() -> None:
    for found in run_ranks(2, refused):
        assert "Task has no parameter of Task" in found["strangers"]
        assert "give both modules the same options" in found["options"]
