"""Evaluation between steps of a training, on batches of other sizes and lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.scenarios import Plain, Trained, Training, cases, check, layers
from support.texts import Language, cross_entropy, text

from distir.parallel.parallel_module import ParallelModule

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(p=2, k=2),
    dict(d=2),
    dict(t=2),
    dict(d=2, t=2),
    dict(d=2, p=2, k=2, zero=1),
    dict(p=2, k=2, schedule="interleaved-1f1b"),
]

VALIDATION = ((6, 10), (6, 10), (5, 10), (4, 3))
"""Samples and lengths of the batches of a validation."""


def rows_of_all(model: Any, own: torch.Tensor) -> torch.Tensor:
    """Returns the rows of all ranks, whose numbers may differ; on one process all of them."""
    if not isinstance(model, ParallelModule):
        return own
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (model.data_rank, own))
    parts = dict(found)
    return torch.cat([parts[i] for i in range(model.data_ranks)])


def evaluated(side: Plain) -> Trained:
    model = side.make(Language(4), text(8, 6, 0)[0], loss="cross_entropy")
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    outputs: dict[str, torch.Tensor] = {}
    for step in range(3):
        model.train()
        loss = side.loss(model, cross_entropy, *text(8, 6, step))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for seed, (samples, length) in enumerate(VALIDATION):
                words, labels = text(samples, length, 100 + seed)
                value = side.loss(model, cross_entropy, words, labels)
                assert not value.requires_grad
                losses.append(value.item())
                own = model(side.part(words))
                outputs[f"{step} {seed}"] = rows_of_all(model, own)
    return Trained(losses, [model], outputs)


def evaluated_numbers(side: Plain) -> Trained:
    """A step, and the loss and the outputs for more and for fewer samples."""
    model = side.make(layers(0, 6, 12, 4), side.data(0, 6), loss="mse")
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    outputs: dict[str, torch.Tensor] = {}
    for rows in (12, 5):
        model.train()
        loss = side.loss(model, F.mse_loss, side.data(rows, 6), side.data(1, 4))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            x, y = side.data(2, 6, rows=rows), side.data(3, 4, rows=rows)
            losses.append(side.loss(model, F.mse_loss, x, y).item())
            outputs[str(rows)] = rows_of_all(model, model(side.part(x)))
    return Trained(losses, [model], outputs)


@pytest.mark.parametrize("training, plan", cases(PLANS[:4]), ids=str)
def test_numbers(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "evaluated_numbers", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_evaluation(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "evaluated", training, plan)
