"""A GAN with a gradient penalty (WGAN-GP), whose critic is an opaque part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.scenarios import EXACT, STEPS, Plain, Trained, check, layers
from torch import nn

import distir
from distir.errors import DistIRError

WIDTH, NOISE = 8, 3

PLANS: list[dict[str, Any]] = [dict(d=2), dict(t=2), dict(d=2, zero=3)]


class Penalised(nn.Module):
    """Scores samples, and gives the penalty of each of others."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = layers(1, WIDTH, 16, 1)

    def forward(
        self, x: torch.Tensor, mixed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            mixed = mixed.detach().requires_grad_()
            score = self.critic(mixed).sum()
            (slope,) = torch.autograd.grad(score, mixed, create_graph=True)
        return self.critic(x), (slope.norm(dim=1) - 1).square()


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rule = "b d, b d -> b 1, b"
        self.both = distir.opaque(Penalised(), rule=rule, keep="d")

    def forward(
        self, x: torch.Tensor, mixed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.both(x, mixed)


def gan(side: Plain) -> Trained:
    real, noise = side.data(0, WIDTH), side.data(1, NOISE)
    share = side.data(2, 1).sigmoid()
    generator = side.make(layers(0, NOISE, 16, WIDTH), noise)
    critic = side.make(Critic(), real, real)
    optimizers = [side.optimizer(m.parameters()) for m in (generator, critic)]
    losses: list[float] = []
    for step in range(STEPS):
        with torch.no_grad():
            fake = generator(side.part(noise + step))
        own, part = side.part(real), side.part(share)
        mixed = part * own + (1 - part) * fake
        of_fake, penalty = critic(fake, mixed)
        loss = of_fake.mean() - critic(own, mixed)[0].mean() + 10 * penalty.mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        fake = generator(side.part(noise))
        fooled = -critic(fake, fake)[0].mean()
        optimizers[0].zero_grad()
        fooled.backward()
        optimizers[0].step()
        losses += [side.mean(loss), side.mean(fooled)]
    return Trained(losses, [generator, critic])


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_gradient_penalty(plan: dict[str, Any]) -> None:
    check(__file__, "gan", EXACT, plan)


class Shared(nn.Module):
    """An opaque part whose parameters another part uses, too."""

    def __init__(self) -> None:
        super().__init__()
        self.both = distir.opaque(Penalised(), rule="b d, b d -> b 1, b", keep="d")
        self.score = self.both.critic

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x).mean() + self.both(x, x)[1].mean()


class Inside(nn.Module):
    """A module that takes a gradient in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Penalised()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(x, x)[1].mean()


@pytest.fixture
def own_group() -> Iterator[None]:
    """Ends the process group that `parallelize` makes in a script of one process."""
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("own_group")
def test_what_to_do_is_said() -> None:
    x = torch.randn(4, WIDTH)
    with pytest.raises(DistIRError) as error:
        distir.parallelize(Inside(), (x,))
    assert "(slope,) = torch.autograd.grad(score" in str(error.value)
    assert "a submodule that distir.opaque marks" in str(error.value)
    with pytest.raises(DistIRError, match=r"shares the parameter"):
        distir.parallelize(Shared(), (x,))
