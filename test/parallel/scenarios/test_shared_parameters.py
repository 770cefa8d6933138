"""Two modules over one encoder, which learn two tasks in turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.parallel_sharing import Task, encoder
from support.scenarios import Plain, Trained, Training, cases, check

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(p=2),
    dict(d=2),
    dict(t=2),
    dict(d=2, t=2, zero=1),
    dict(d=2, p=2),
]


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
