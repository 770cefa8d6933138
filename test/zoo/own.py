"""Models that are in none of these libraries, or in ones that are not needed otherwise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support.models import EncoderDecoder, Mlp
from support.torch_models import DenoisingUnet
from torch import Tensor, nn

from zoo.model import BATCH, WORDS, ZooModel, family, images, words


@family("own")
def mlp() -> ZooModel:
    return ZooModel(Mlp(), {"input": torch.randn(BATCH, 16)}, "mse")


@family("own", "encoder-decoder")
def encoder_decoder() -> ZooModel:
    inputs = {name: torch.randn(BATCH, 8, 16) for name in ("input", "target")}
    return ZooModel(EncoderDecoder(), inputs, "mse")


@family("diffusers-like", "unet2d")
def unet2d() -> ZooModel:
    """The U-Net of denoising diffusion, which is told how noisy an image is."""
    module = DenoisingUnet(8, [1, 2], 1, 4, 4)
    inputs = {"sample": images(8), "timestep": torch.arange(BATCH).float()}
    return ZooModel(module, inputs, "mse")


class _ModulatedBlock(nn.Module):
    """A transformer's layer whose norms are scaled and shifted by a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width)
        )
        self.modulation = nn.Linear(width, 6 * width)

    def attend(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out(found.reshape(n, length, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        parts = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class _DiffusionTransformer(nn.Module):
    def __init__(self, width: int = 16, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, 16, width))
        self.classes = nn.Embedding(8, width)
        self.time = nn.Sequential(
            nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.blocks = nn.ModuleList(_ModulatedBlock(width, 4) for _ in range(2))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.head = nn.Linear(width, patch * patch * 3)

    def forward(self, sample: Tensor, timestep: Tensor, label: Tensor) -> Tensor:
        angles = timestep[:, None] * torch.exp(-torch.arange(4.0))
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        condition = condition + self.classes(label)
        x = self.embed(sample).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x, condition)
        n, p = x.shape[0], self.patch
        x = self.head(self.norm(x)).view(n, 4, 4, p, p, 3)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(n, 3, 4 * p, 4 * p)


@family("diffusers-like", "dit")
def diffusion_transformer() -> ZooModel:
    inputs = {
        "sample": images(8),
        "timestep": torch.arange(BATCH).float(),
        "label": torch.arange(BATCH),
    }
    return ZooModel(_DiffusionTransformer(), inputs, "mse")


class _Autoencoder(nn.Module):
    """
    A variational autoencoder with group normalisation; the noise is an input. The loss is
    the squared error and the divergence from the standard normal distribution.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.Conv2d(8, 8, 3, padding=1),
        )
        self.first, self.middle = nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.last = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        mean, spread = self.encoder(image).chunk(2, 1)
        spread = spread.clamp(-30, 20)
        latent = mean + torch.exp(0.5 * spread) * noise
        h = F.interpolate(F.silu(self.middle(self.first(latent))), scale_factor=2.0)
        error = F.mse_loss(self.last(h), image)
        return error + 0.5 * (mean.square() + spread.exp() - 1 - spread).mean()


@family("diffusers-like", "vae")
def variational_autoencoder() -> ZooModel:
    inputs = {"image": images(8), "noise": torch.randn(BATCH, 4, 4, 4)}
    return ZooModel(_Autoencoder(), inputs, "none")


@family("own", "gan-generator")
def generator() -> ZooModel:
    """Transposed convolutions, as in DCGAN."""
    module = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    return ZooModel(module, {"input": torch.randn(BATCH, 8, 1, 1)}, "mse")


class _Recommender(nn.Module):
    """Bags of categories, numbers, and the products of all pairs of them: DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(WORDS, 8, mode="sum") for _ in range(3)
        )
        self.bottom = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU()
        )
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(
        self, numbers: Tensor, first: Tensor, second: Tensor, third: Tensor
    ) -> Tensor:
        dense = self.bottom(numbers)
        categories = (first, second, third)
        found = [bag(ids) for bag, ids in zip(self.bags, categories, strict=True)]
        every = torch.stack([dense, *found], 1)
        products = torch.bmm(every, every.transpose(1, 2))
        row, column = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([dense, products[:, row, column]], 1))


@family("own")
def dlrm() -> ZooModel:
    inputs = {"numbers": torch.randn(BATCH, 4)}
    inputs |= {name: words(3) for name in ("first", "second", "third")}
    return ZooModel(_Recommender(), inputs)


class _Recurrent(nn.Module):
    """Words, a recurrent layer in both directions, and a label for each word."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layers = kind(16, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.layers(self.words(input_ids))[0])


@family("own")
def lstm() -> ZooModel:
    return ZooModel(_Recurrent(nn.LSTM), {"input_ids": words()})


@family("own")
def gru() -> ZooModel:
    return ZooModel(_Recurrent(nn.GRU), {"input_ids": words()})


class _LoopOverExperts(nn.Module):
    """A mixture of experts as it is first written: a loop, and weights that may be zero."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))
            for _ in range(experts)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, input: Tensor) -> Tensor:
        scores = self.gate(input).softmax(-1)
        best, chosen = scores.topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        found = torch.zeros_like(input)
        for index, expert in enumerate(self.experts):
            weight = (best * (chosen == index)).sum(-1, keepdim=True)
            found = found + weight * expert(input)
        return self.head(input + found)


@family("own", "loop-over-experts")
def loop_over_experts() -> ZooModel:
    return ZooModel(_LoopOverExperts(16, 4), {"input": torch.randn(BATCH, 8, 16)})
