"""
A language model whose logits stay split over words: with the module's own cross-entropy, and
with PyTorch's `loss_parallel`, as a script for `ColwiseParallel` has it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import (
    STEPS,
    Parallel,
    Plain,
    Trained,
    Training,
    cases,
    check,
)
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

WORDS, LENGTH, WIDTH = 32, 6, 8

SPLIT: dict[str, Any] = dict(t=2, sharded_outputs=True)
PLANS: list[dict[str, Any]] = [
    SPLIT,
    dict(SPLIT, d=2),
    dict(SPLIT, d=2, zero=3),
    dict(d=2, sharded_outputs=True),
]
PIPELINES: list[dict[str, Any]] = [dict(SPLIT, p=2, k=2), dict(SPLIT, k=2)]


class Model(nn.Module):
    """An embedding, a layer, and a head of its own."""

    def __init__(self, gives_hidden: bool = True) -> None:
        super().__init__()
        self.gives_hidden = gives_hidden
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.embedding(words)
        x = x + self.down(torch.tanh(self.up(x)))
        return (self.head(x), x) if self.gives_hidden else (self.head(x),)


def words(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The words of a batch, and those that follow, of which as many count in each part."""
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(WORDS, (8, LENGTH + 1), generator=generator)
    labels = text[:, 1:].clone()
    labels[::4, 2:] = -100
    return text[:, :-1], labels


def plain_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def trained(side: Plain, loss_of: Any) -> Trained:
    model = side.make(Model(), words(0)[0])
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        x, labels = map(side.part, words(step))
        logits, hidden = model(x)
        if isinstance(side, Parallel) and side.plan.get("t"):
            assert isinstance(logits, DTensor) and logits.placements == (Shard(2),)
            assert not isinstance(hidden, DTensor)
        loss = loss_of(side, model, logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(side.mean(loss))
    return Trained(losses, [model])


def with_its_cross_entropy(side: Plain) -> Trained:
    def loss_of(
        side: Plain, model: Any, logits: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        if isinstance(side, Parallel):
            return model.cross_entropy(logits, labels)
        return plain_loss(logits, labels)

    return trained(side, loss_of)


def with_logits_kept(side: Plain) -> Trained:
    """Logits in a variable, and a penalty, are those of the forward behind the backward."""
    model = side.make(Model(), words(0)[0])
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        x, labels = map(side.part, words(step))
        logits, hidden = model(x)
        if isinstance(side, Parallel):
            loss = model.cross_entropy(logits, labels)
            penalty = 1e-2 * logits.full_tensor().square().mean()
        else:
            loss = plain_loss(logits, labels)
            penalty = 1e-2 * logits.square().mean()
        optimizer.zero_grad()
        (loss + hidden.square().mean() + penalty).backward()
        optimizer.step()
        kept = logits.full_tensor() if isinstance(logits, DTensor) else logits
        losses += [side.mean(loss), side.mean(kept.detach().square().mean())]
    return Trained(losses, [model])


def with_loss_parallel(side: Plain) -> Trained:
    """PyTorch's own loss over split classes, beside a penalty that brings logits together."""

    def loss_of(
        side: Plain, model: Any, logits: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        whole = logits.full_tensor() if isinstance(logits, DTensor) else logits
        loss = plain_loss(logits, labels)
        if isinstance(loss, DTensor):
            loss = loss.full_tensor()
        return loss + 1e-2 * whole.square().mean()

    with loss_parallel():
        return trained(side, loss_of)


def in_micro_batches(side: Plain) -> Trained:
    model = side.make(Model(gives_hidden=False), words(0)[0])
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []

    def loss_of(output: Any, labels: torch.Tensor) -> torch.Tensor:
        if isinstance(side, Parallel):
            return model.cross_entropy(output[0], labels)
        return plain_loss(output[0], labels)

    for step in range(STEPS):
        optimizer.zero_grad()
        given = map(side.part, words(step))
        losses.append(side.step_outside(model, loss_of, *given))
        optimizer.step()
    return Trained(losses, [model])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_its_cross_entropy(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "with_its_cross_entropy", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS[:3]), ids=str)
def test_logits_that_are_kept(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "with_logits_kept", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS[:3]), ids=str)
def test_loss_parallel(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "with_loss_parallel", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PIPELINES), ids=str)
def test_in_micro_batches(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "in_micro_batches", training, plan)
