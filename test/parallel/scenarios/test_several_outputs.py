"""A module with outputs in a dictionary, of which the script computes the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import (
    EXACT,
    STEPS,
    Plain,
    Trained,
    Training,
    cases,
    check,
    layers,
)
from torch import nn
from torch.utils._pytree import register_dataclass

WIDTH, CLASSES = 8, 4

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2, t=2, zero=1),
]
PIPELINES: list[dict[str, Any]] = [
    dict(p=2, k=2),
    dict(p=2, d=2, k=2, zero=3),
    dict(p=2, t=2, k=4, schedule="zb-h1"),
]
STAGES: list[dict[str, Any]] = [
    dict(p=2, k=2),
    dict(p=4, k=4),
    dict(p=2, d=2, k=2, zero=3),
    dict(p=2, k=4, schedule="zbv"),
    dict(p=2, k=4, schedule="interleaved-1f1b"),
]


class Heads(nn.Module):
    """A module with several outputs, one of integers, and a number of the whole batch."""

    def __init__(self, has_penalty: bool = True) -> None:
        super().__init__()
        self.has_penalty = has_penalty
        self.trunk = layers(0, WIDTH, 16, 16)
        self.values, self.logits = layers(1, 16, WIDTH), layers(2, 16, CLASSES)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.trunk(x)
        logits = self.logits(hidden)
        found = {"both": (self.values(hidden), logits), "choice": logits.argmax(-1)}
        return (
            found | {"penalty": hidden.square().mean()} if self.has_penalty else found
        )


def heads_loss(output: dict[str, Any], target: torch.Tensor) -> torch.Tensor:
    values, logits = output["both"]
    chosen = F.cross_entropy(logits, output["choice"])
    return F.mse_loss(values, target) + chosen + output.get("penalty", 0.0)


@dataclass
class Hidden:
    """Outputs of several stages of a pipeline."""

    logits: torch.Tensor
    hidden: list[torch.Tensor]
    choice: torch.Tensor
    penalty: torch.Tensor | None


register_dataclass(Hidden)


class Deep(nn.Module):
    """A module that returns what each of its layers computes, one choice of integers."""

    def __init__(self, has_penalty: bool) -> None:
        super().__init__()
        self.has_penalty = has_penalty
        self.layers = nn.ModuleList(layers(i, WIDTH, WIDTH) for i in range(4))
        self.head = layers(9, WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> Hidden:
        hidden: list[torch.Tensor] = []
        for layer in self.layers:
            hidden.append(x := torch.tanh(layer(x)))
        penalty = hidden[0].square().mean() if self.has_penalty else None
        choice = hidden[0][:, :CLASSES].argmax(-1)
        return Hidden(self.head(x), hidden, choice, penalty)


def deep_loss(output: Hidden, target: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(output.logits, output.choice)
    for weight, hidden in enumerate(output.hidden):
        loss = loss + weight * F.mse_loss(hidden, target)
    return loss if output.penalty is None else loss + output.penalty


def several_outputs(side: Plain) -> Trained:
    x, y = side.data(0, WIDTH), side.data(1, WIDTH)
    module = side.make(Heads(), x, loss="outside")
    optimizer = side.optimizer(module.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        loss = heads_loss(module(side.part(x + step)), side.part(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(side.mean(loss))
    return Trained(losses, [module])


def in_micro_batches(side: Plain) -> Trained:
    """The same without the number of the whole batch, which micro-batches do not have."""
    return _in_steps(side, Heads(has_penalty=False), heads_loss)


def of_stages(side: Plain) -> Trained:
    """Outputs of all stages, of which those of the last one compute the loss."""
    return _in_steps(side, Deep(has_penalty=False), deep_loss)


def with_a_penalty(side: Plain) -> Trained:
    """The same with a number of the whole batch of the first stage."""
    return _in_steps(side, Deep(has_penalty=True), deep_loss)


def _in_steps(side: Plain, made: nn.Module, loss: Any) -> Trained:
    x, y = side.data(0, WIDTH), side.data(1, WIDTH)
    module = side.make(made, x, loss="outside")
    optimizer = side.optimizer(module.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        given = side.part(x + step), side.part(y)
        losses.append(side.step_outside(module, loss, *given))
        optimizer.step()
    return Trained(losses, [module])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_several_outputs(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "several_outputs", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PIPELINES), ids=str)
def test_in_micro_batches(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "in_micro_batches", training, plan)


@pytest.mark.parametrize("training, plan", cases(STAGES), ids=str)
def test_outputs_of_several_stages(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "of_stages", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [dict(p=2, k=1), dict(p=2, d=2, k=1)], ids=str)
def test_a_number_of_the_first_stage(plan: dict[str, Any]) -> None:
    check(__file__, "with_a_penalty", EXACT, plan)
