"""Sequences of 17 to 64 words, which `pad_to` pads to 32, 48 or 64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.scenarios import STEPS, Plain, Trained, Training, cases, check
from support.texts import WORDS, Language, cross_entropy

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(d=2, zero=3),
    dict(t=2),
    dict(p=2, k=2),
    dict(d=2, t=2),
    dict(d=2, p=2, k=2, zero=1),
]


def sequences(seed: int, samples: int = 8) -> list[torch.Tensor]:
    """Returns texts of 17 to 64 words, and the words that follow."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(17, (34, 50, 65)[seed % 3], (samples,), generator=generator)
    return [torch.randint(WORDS, (int(n) + 1,), generator=generator) for n in lengths]


def together(texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns texts and labels as a loader makes a batch: as long as the longest."""
    words = torch.nn.utils.rnn.pad_sequence([t[:-1] for t in texts], batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(
        [t[1:] for t in texts], batch_first=True, padding_value=-100
    )
    return words, labels


def trained(side: Plain) -> Trained:
    """
    Each rank makes a batch of its own texts, as long as the longest of these. PyTorch alone
    takes each text as long as it is.
    """
    example = torch.zeros(8, 32, dtype=torch.int64)
    model = side.make(Language(), example, loss="cross_entropy", pad_to=16)
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    own: list[torch.Tensor] = []
    for step in range(STEPS + 1):
        texts = sequences(step, samples=8 if step < STEPS - 1 else 5)
        numbers = side.part(torch.arange(len(texts)))
        own = [texts[i] for i in numbers]
        is_last = step == STEPS
        model.train(not is_last)
        if isinstance(model, Language):
            outputs = torch.cat([model(text[None, :-1])[0] for text in own])
            loss = cross_entropy(outputs, torch.cat([text[1:] for text in own]))
        else:
            loss = model(*together(own))
        losses.append(loss.item())
        if not is_last:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        words, _ = together(own)
        found = model(words)
        assert found.shape == (*words.shape, WORDS)
        again = model(words[:, :20])
    expected = found[:, :20]
    assert (again - expected).abs().max() <= 1e-5 * expected.abs().max()
    return Trained(losses, [model])


def of_words(side: Plain) -> Trained:
    """A model that sees one word at a time, for texts of two lengths."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(WORDS, 8), torch.nn.Linear(8, 9))
    example = torch.zeros(8, 32, dtype=torch.int64)
    model = side.make(module, example, loss="cross_entropy", pad_to=16)
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step, longest in enumerate((32, 45, 20)):
        texts = [
            torch.cat([text, text])[: longest + 1 - 2 * i]
            for i, text in enumerate(sequences(step))
        ]
        own = [texts[i] for i in side.part(torch.arange(len(texts)))]
        words, labels = together(own)
        labels = labels.where(labels < 0, labels % 9)
        if isinstance(model, torch.nn.Sequential):
            loss = cross_entropy(model(words), labels)
        else:
            loss = model(words, labels)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, [model])


@pytest.mark.parametrize("training, plan", cases(PLANS[:3]), ids=str)
def test_words(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "of_words", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_lengths(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "trained", training, plan)
