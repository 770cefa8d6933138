"""Several documents in each row: words see those of their own document alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.scenarios import STEPS, Plain, Trained, Training, cases, check
from support.texts import Language, cross_entropy, text

LENGTH = 12

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2),
    dict(p=2, k=2),
    dict(d=2, t=2, zero=1),
    dict(p=2, d=2, k=2),
]

Rows = list[list[int]]
"""The lengths of the documents in each row."""


def packed(seed: int, samples: int = 8) -> Rows:
    """Returns rows that are full, but for the last one."""
    generator = torch.Generator().manual_seed(seed)
    rows: Rows = []
    for _ in range(samples):
        cuts = torch.randperm(LENGTH - 1, generator=generator)[:2].sort().values + 1
        first, second = cuts.tolist()
        rows.append([first, second - first, LENGTH - second])
    rows[-1].pop()
    return rows


def arguments(rows: Rows, seed: int) -> tuple[torch.Tensor, ...]:
    """Returns words, their places, their documents, and labels; -1 is no document."""
    words, labels = text(len(rows), LENGTH, seed)
    places = torch.zeros_like(words)
    documents = torch.full_like(words, -1)
    for row, lengths in enumerate(rows):
        start = 0
        for number, length in enumerate(lengths):
            places[row, start : start + length] = torch.arange(length)
            documents[row, start : start + length] = number
            labels[
                row, start + length - 1
            ] = -100  # the next word is another document's
            start += length
        labels[row, start:] = -100
    return words, places, documents, labels


def on_their_own(model: Language, rows: Rows, batch: tuple[torch.Tensor, ...]) -> Any:
    """Returns the loss of a batch whose documents a model of PyTorch takes one by one."""
    words, _, _, labels = batch
    outputs: list[torch.Tensor] = []
    wanted: list[torch.Tensor] = []
    for row, lengths in enumerate(rows):
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            outputs.append(model(words[row : row + 1, own])[0])
            wanted.append(labels[row, own])
            start += length
    return cross_entropy(torch.cat(outputs), torch.cat(wanted))


def trained(side: Plain) -> Trained:
    *inputs, _ = arguments(packed(0), 0)
    model = side.make(Language(), *inputs, loss="cross_entropy")
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        rows = packed(step, samples=8 if step < STEPS - 1 else 3)
        batch = arguments(rows, step)
        if isinstance(model, Language):
            loss = on_their_own(model, rows, batch)
        else:
            loss = side.loss(model, cross_entropy, *batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, [model])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_documents(training: Training, plan: dict[str, Any]) -> None:
    """As PyTorch trains on each document alone; the last batch has 3 rows."""
    check(__file__, "trained", training, plan)
