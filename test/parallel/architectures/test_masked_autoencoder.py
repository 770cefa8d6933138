"""A vision transformer that fills in masked patches (MAE), with its loss inside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.scenarios import EXACT, STEPS, Plain, Trained, check
from torch import nn

WIDTH, PATCHES, PIXELS, KEPT = 16, 16, 12, 4

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(p=2, k=2),
]


def _layer() -> nn.Module:
    options: dict[str, Any] = dict(batch_first=True, norm_first=True)
    return nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, **options)


class MaskedAutoencoder(nn.Module):
    """Noise [samples, patches], which the script draws, chooses the patches to keep."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(PIXELS, WIDTH)
        self.places = nn.Parameter(torch.randn(1, PATCHES, WIDTH) * 0.1)
        self.masked = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.1)
        self.encoder = nn.ModuleList([_layer(), _layer()])
        self.decoder = nn.ModuleList([_layer()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PIXELS)

    def forward(self, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        samples = len(images)
        patches = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5)
        patches = patches.reshape(samples, PATCHES, PIXELS)
        order = noise.argsort(dim=1)
        back = order.argsort(dim=1)
        kept = order[:, :KEPT, None].expand(-1, -1, WIDTH)
        x = torch.gather(self.embed(patches) + self.places, 1, kept)
        mask = torch.ones_like(noise)
        mask[:, :KEPT] = 0
        mask = torch.gather(mask, 1, back)
        for layer in self.encoder:
            x = layer(x)
        others = self.masked.expand(samples, PATCHES - KEPT, -1)
        x = torch.cat([self.norm(x), others], 1)
        x = torch.gather(x, 1, back[..., None].expand(-1, -1, WIDTH)) + self.places
        for layer in self.decoder:
            x = layer(x)
        error = (self.head(x) - patches).square().mean(-1)
        return (error * mask).sum() / mask.sum()


def autoencoder(side: Plain) -> Trained:
    images, noise = side.data(0, 3, 8, 8), side.data(1, PATCHES)
    module = side.make(MaskedAutoencoder(), images, noise)
    optimizer = side.optimizer(module.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = module(side.part(images + step), side.part(noise.roll(step, 0)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, [module])


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_masked_autoencoder(plan: dict[str, Any]) -> None:
    check(__file__, "autoencoder", EXACT, plan)
