"""An encoder and a decoder of PyTorch, with masks of the padding of both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.scenarios import STEPS, Plain, Trained, Training, cases, check
from support.texts import HEADS, LONGEST, WIDTH, WORDS, cross_entropy
from torch import nn

PADDING = 0
SOURCE, TARGET = 9, 7

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(d=2, zero=3),
    dict(t=2),
    dict(p=2, k=2),
    dict(d=2, t=2),
    dict(d=2, p=2, k=2, zero=1),
]


class Translator(nn.Module):
    """`nn.Transformer` between embeddings and a head."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.Transformer(
            *(WIDTH, HEADS, count, count, 4 * WIDTH),
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        length = target.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=target.device)
        found = self.layers(
            self._embedded(source),
            self._embedded(target),
            tgt_mask=later.triu(1),
            src_key_padding_mask=source == PADDING,
            tgt_key_padding_mask=target == PADDING,
            memory_key_padding_mask=source == PADDING,
        )
        return self.head(found)

    def _embedded(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        return self.words(words) + self.places(places)


def sentences(seed: int, samples: int, source: int, target: int) -> tuple[Any, ...]:
    """Returns sentences of different lengths, and the labels of the second ones."""
    generator = torch.Generator().manual_seed(seed)

    def padded(length: int) -> torch.Tensor:
        words = torch.randint(1, WORDS, (samples, length), generator=generator)
        sizes = torch.randint(1, length + 1, (samples, 1), generator=generator)
        sizes[0] = length
        return words.masked_fill(torch.arange(length) >= sizes, PADDING)

    given, wanted = padded(source), padded(target + 1)
    labels = wanted[:, 1:]
    return given, wanted[:, :-1], labels.masked_fill(labels == PADDING, -100)


def trained(side: Plain) -> Trained:
    *inputs, _ = sentences(0, 8, SOURCE, TARGET)
    model = side.make(Translator(), *inputs, loss="cross_entropy")
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        sizes = (8, SOURCE, TARGET) if step % 2 == 0 else (6, SOURCE - 4, TARGET + 4)
        loss = side.loss(model, cross_entropy, *sentences(step, *sizes))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        batch = sentences(9, 8, SOURCE, TARGET)
        losses.append(side.loss(model, cross_entropy, *batch).item())
    return Trained(losses, [model])


def small(side: Plain) -> Trained:
    """An encoder and a decoder of one layer each, for two steps."""
    *inputs, _ = sentences(0, 8, SOURCE, TARGET)
    model = side.make(Translator(1), *inputs, loss="cross_entropy")
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(2):
        batch = sentences(step, 8, SOURCE, TARGET)
        loss = side.loss(model, cross_entropy, *batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, [model])


@pytest.mark.parametrize("training, plan", cases(PLANS[1:2]), ids=str)
def test_one_layer(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "small", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_sentences(training: Training, plan: dict[str, Any]) -> None:
    """Steps take sentences of two pairs of lengths in turns."""
    check(__file__, "trained", training, plan)
