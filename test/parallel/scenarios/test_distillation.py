"""A frozen teacher beside a student, which looks at all of its outputs and at labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import STEPS, Plain, Trained, Training, cases, check, layers

WIDTH, CLASSES, TEMPERATURE = 8, 4, 2.0

PLANS: list[dict[str, Any]] = [
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2),
    dict(d=2, t=2, zero=1),
]
PIPELINES: list[dict[str, Any]] = [dict(p=2, k=2), dict(p=2, d=2, k=2, zero=3)]


def mixed_loss(
    logits: torch.Tensor, wanted: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """`wanted` are the teacher's probabilities, and labels."""
    target, labels = wanted
    found = (logits / TEMPERATURE).log_softmax(-1)
    soft = F.kl_div(found, target, reduction="batchmean") * TEMPERATURE**2
    return 0.7 * soft + 0.3 * F.cross_entropy(logits, labels)


def distillation(side: Plain) -> Trained:
    x = side.data(0, WIDTH)
    labels = torch.arange(len(x)) % CLASSES
    teacher = side.make(layers(0, WIDTH, 32, CLASSES), x).eval().requires_grad_(False)
    student = side.make(layers(1, WIDTH, 8, CLASSES), x)
    optimizer = side.optimizer(student.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        own = side.part(x + step)
        with torch.no_grad():
            target = (teacher(own) / TEMPERATURE).softmax(-1)
        loss = mixed_loss(student(own), (target, side.part(labels)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(side.mean(loss))
    return Trained(losses, [student, teacher])


def in_micro_batches(side: Plain) -> Trained:
    """The same in steps, as the stages of a pipeline need it."""
    x = side.data(0, WIDTH)
    labels = torch.arange(len(x)) % CLASSES
    teacher = side.make(layers(0, WIDTH, 32, CLASSES), x, loss="outside").eval()
    student = side.make(layers(1, WIDTH, 8, CLASSES), x, loss="outside")
    optimizer = side.optimizer(student.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        own = side.part(x + step)
        with torch.no_grad():
            target = (teacher(own) / TEMPERATURE).softmax(-1)
        optimizer.zero_grad()
        wanted = target, side.part(labels)
        losses.append(side.step_outside(student, mixed_loss, own, wanted))
        optimizer.step()
    return Trained(losses, [student, teacher])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_distillation(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "distillation", training, plan)


@pytest.mark.parametrize("training, plan", cases(PIPELINES), ids=str)
def test_in_micro_batches(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "in_micro_batches", training, plan)
