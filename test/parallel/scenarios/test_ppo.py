"""PPO: ratios to a policy before, clipped, with values, an entropy, and mini-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import STEPS, Plain, Trained, Training, cases, check, layers
from torch import nn

WIDTH, ACTIONS = 8, 4

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2, t=2, zero=1),
]
PIPELINES: list[dict[str, Any]] = [dict(p=2, k=2), dict(p=2, d=2, k=2, zero=3)]


class Actor(nn.Module):
    """A policy and the values of states."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = layers(0, WIDTH, 16, 16)
        self.policy, self.value = layers(1, 16, ACTIONS), layers(2, 16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(x)
        return self.policy(hidden), self.value(hidden)[:, 0]


def clipped_loss(
    output: tuple[torch.Tensor, torch.Tensor], played: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """`played` are actions, their logarithms of chances before, advantages and gains."""
    (logits, values), (actions, before, advantages, gains) = output, played
    chances = logits.log_softmax(-1)
    ratio = (chances.gather(1, actions)[:, 0] - before).exp()
    clipped = ratio.clamp(0.9, 1.1)
    policy = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    entropy = -(chances.exp() * chances).sum(-1).mean()
    return policy + 0.5 * F.mse_loss(values, gains) - 0.01 * entropy


def rollout(
    side: Plain, actor: Any, own: torch.Tensor, gains: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Returns what `clipped_loss` takes for the states of this rank."""
    with torch.no_grad():
        logits, values = actor(own)
    actions = logits.argmax(-1, keepdim=True)
    before = logits.log_softmax(-1).gather(1, actions)[:, 0]
    advantages = gains - values
    # Over all samples, as on one process.
    all_of_them = side.all(actor, advantages)
    advantages = (advantages - all_of_them.mean()) / (all_of_them.std() + 1e-8)
    return actions, before, advantages, gains


def ppo(side: Plain) -> Trained:
    states, rewards = side.data(0, WIDTH), side.data(1)
    actor = side.make(Actor(), states)
    optimizer = side.optimizer(actor.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        own = side.part(states + step)
        played = rollout(side, actor, own, side.part(rewards))
        for _ in range(2):
            loss = clipped_loss(actor(own), played)
            optimizer.zero_grad()
            loss.backward()
            norm = side.clip(actor, 0.5)
            optimizer.step()
            losses += [side.mean(loss), norm]
    return Trained(losses, [actor])


def in_micro_batches(side: Plain) -> Trained:
    """The same in steps, as the stages of a pipeline need it."""
    states, rewards = side.data(0, WIDTH), side.data(1)
    actor = side.make(Actor(), states, loss="outside")
    optimizer = side.optimizer(actor.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        own = side.part(states + step)
        played = rollout(side, actor.eval(), own, side.part(rewards))
        actor.train()
        for _ in range(2):
            optimizer.zero_grad()
            loss = side.step_outside(actor, clipped_loss, own, played)
            norm = side.clip(actor, 0.5)
            optimizer.step()
            losses += [loss, norm]
    return Trained(losses, [actor])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_ppo(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "ppo", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PIPELINES), ids=str)
def test_in_micro_batches(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "in_micro_batches", training, plan)
