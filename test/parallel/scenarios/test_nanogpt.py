"""
A GPT in the manner of nanoGPT: attention of its own with a causal mask in a buffer, a tied
head, its loss from its forward, groups of decayed parameters, clipping, and a schedule.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.scenarios import EXACT, STEPS, Plain, Trained, Training, cases, check
from torch import nn

LENGTH, WORDS, WIDTH, HEADS, LAYERS = 8, 32, 16, 2, 2

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2),
    dict(p=2, k=2),
    dict(d=2, t=2, zero=1),
    dict(d=2, p=2, k=2, zero=3),
]


class Attention(nn.Module):
    """Causal attention, written out."""

    bias: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        mask = torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH)
        self.register_buffer("bias", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = (
            part.view(b, t, HEADS, c // HEADS).transpose(1, 2)
            for part in self.c_attn(x).split(WIDTH, dim=2)
        )
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    """A layer of the GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The model; with targets, it returns its loss too."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(WORDS, WIDTH),
                wpe=nn.Embedding(LENGTH, WIDTH),
                drop=nn.Dropout(0.0),
                h=nn.ModuleList([Block() for _ in range(LAYERS)]),
                ln_f=nn.LayerNorm(WIDTH),
            )
        )
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.2)

    def forward(
        self, idx: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        t = idx.size(1)
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer["wte"](idx) + self.transformer["wpe"](pos)
        x = self.transformer["drop"](x)
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )
        return logits, loss

    def configure_optimizers(self, side: Plain, lr: float) -> torch.optim.Optimizer:
        """Decays matrices, and no biases and norms."""
        params = {n: p for n, p in self.named_parameters() if p.requires_grad}
        groups = [
            {
                "params": [p for p in params.values() if p.dim() >= 2],
                "weight_decay": 0.1,
            },
            {
                "params": [p for p in params.values() if p.dim() < 2],
                "weight_decay": 0.0,
            },
        ]
        if side.training.optimizer == "SGD":
            return torch.optim.SGD(groups, lr=lr)
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def learning_rate(step: int, lr: float) -> float:
    """Warms up, then falls with a cosine."""
    if step < 2:
        return lr * (step + 1) / 3
    return 0.1 * lr + 0.45 * lr * (1 + math.cos(math.pi * (step - 2) / 8))


def words(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The words of a batch, and those that follow, of which some do not count."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(WORDS, (8, LENGTH + 1), generator=generator)
    targets = text[:, 1:].clone()
    targets[0, :5] = targets[5, 2:4] = -1
    return text[:, :-1], targets


def nanogpt(side: Plain, is_evaluated: bool = False) -> Trained:
    """Trains; evaluates the model at the end if asked to."""
    torch.manual_seed(0)
    model = side.make(GPT(), *words(0))
    lr = 0.1 if side.training.optimizer == "SGD" else 1e-2
    optimizer = model.configure_optimizers(side, lr)
    losses: list[float] = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, lr)
        found = model(*map(side.part, words(step)))
        loss = found[1] if isinstance(found, tuple) else found
        loss.backward()
        losses += [loss.item(), side.clip(model, 0.5)]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if is_evaluated:
        model.eval()
        with torch.no_grad():
            _, loss = model(*map(side.part, words(9)))
        losses.append(loss.item())
    return Trained(losses, [model])


def evaluated(side: Plain) -> Trained:
    """The same, with an evaluation."""
    return nanogpt(side, is_evaluated=True)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS, (EXACT,)), ids=str)
def test_evaluation(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "evaluated", training, plan)


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_nanogpt(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "nanogpt", training, plan)
