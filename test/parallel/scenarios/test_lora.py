"""
LoRA written by hand on a frozen transformer, with gradients that are accumulated under
`no_sync()` as under DistributedDataParallel.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import STEPS, Plain, Trained, Training, cases, check
from torch import nn

LENGTH, WORDS, WIDTH, HEADS, RANK, PARTS = 6, 16, 16, 2, 2, 2

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2),
    dict(p=2),
    dict(d=2, t=2, zero=1),
]


class LoRALinear(nn.Module):
    """A frozen layer with a product of two thin matrices beside it."""

    def __init__(self, base: nn.Linear, alpha: float = 4.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_b = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.normal_(self.lora_b.weight, std=0.2)
        self.scaling = alpha / RANK

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scaling * self.lora_b(self.lora_a(x))


class Layer(nn.Module):
    """Causal attention and a network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (
            part(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def with_adapters() -> Model:
    torch.manual_seed(0)
    model = Model().requires_grad_(False)
    for layer in model.layers:
        layer.query, layer.value = LoRALinear(layer.query), LoRALinear(layer.value)
    return model


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def words(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(WORDS, (8, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def lora(side: Plain) -> Trained:
    model = side.make(with_adapters(), words(0)[0], loss="cross_entropy")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = side.optimizer(trained)
    losses: list[float] = []
    for step in range(STEPS):
        for part in range(PARTS):
            is_last = part == PARTS - 1
            waits = getattr(model, "no_sync", contextlib.nullcontext)
            with contextlib.nullcontext() if is_last else waits():
                batch = words(step * PARTS + part)
                loss = side.loss(model, loss_of, *batch) / PARTS
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    frozen = [p for n, p in model.named_parameters() if "lora" not in n]
    assert all(p.grad is None and not p.requires_grad for p in frozen)
    return Trained(losses, [model])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_lora(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "lora", training, plan)
