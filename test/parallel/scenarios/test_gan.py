"""A GAN: two modules with an optimizer each, of which one has two forwards in a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import STEPS, Plain, Trained, Training, cases, check, layers

WIDTH, NOISE = 8, 3

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2),
    dict(d=2, t=2, zero=1),
]


def gan(side: Plain) -> Trained:
    real, noise = side.data(0, WIDTH), side.data(1, NOISE)
    generator = side.make(layers(0, NOISE, 16, WIDTH), noise)
    critic = side.make(layers(1, WIDTH, 16, 1), real)
    optimizers = [side.optimizer(m.parameters()) for m in (generator, critic)]
    losses: list[float] = []
    for step in range(STEPS):
        fake = generator(side.part(noise + step))
        first, second = critic(side.part(real)), critic(fake.detach())
        loss = F.softplus(-first).mean() + F.softplus(second).mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        # The critic is not trained here, but passes gradients on.
        critic.requires_grad_(False)
        fooled = F.softplus(-critic(fake)).mean()
        optimizers[0].zero_grad()
        fooled.backward()
        optimizers[0].step()
        critic.requires_grad_(True)
        losses += [side.mean(loss), side.mean(fooled)]
    generator.eval()
    with torch.no_grad():
        losses.append(side.mean(generator(side.part(noise)).square().mean()))
    return Trained(losses, [generator, critic])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_gan(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "gan", training, plan)
