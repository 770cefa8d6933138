"""Sequences of 17 to 64 words, which `pad_to` pads to 32, 48 or 64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ranks import run_ranks
from support.scenarios import STEPS, Plain, Trained, Training, cases, check
from support.texts import WORDS, Language, cross_entropy

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize

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


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_lengths(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "trained", training, plan)


def refused() -> dict[str, str]:
    """Returns errors of paddings that cannot be, by what they are."""
    example = torch.zeros(4, 8, dtype=torch.int64)

    def told(length: int = 8, model: Any = None, **options: Any) -> str:
        try:
            made = parallelize(
                model or Language(1), (example,), loss="cross_entropy", **options
            )
            made.train()
            words = torch.ones(4, length, dtype=torch.int64)
            made(words, words)
        except DistIRError as error:
            return str(error)
        return "no error"

    return {
        "order": told(pad_to=(16, 8)),
        "none": told(pad_to=0),
        "alone": told(pad_with={"labels": 0}),
        "name": told(pad_to={"word": 8}),
        "long": told(11, pad_to=(8, 10)),
        "labels": told(7, pad_to=8, pad_with={"labels": 0}),
        "right": told(7, pad_to={"words": 8, "labels": 8}),
        "sees": told(7, Backwards(), pad_to=8),
    }


class Backwards(Language):
    """A model in which words see those behind them."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(words.flip(1)).flip(1)


def test_paddings_that_cannot_be() -> None:
    (found,) = run_ranks(1, refused)
    assert "in ascending order" in found["order"] and "is 0" in found["none"]
    assert "give pad_to too" in found["alone"]
    assert "'word', which is no input; there are words, labels" in found["name"]
    assert "has length 11, and the largest that pad_to allows is 10" in found["long"]
    for name in ("labels", "sees"):
        assert "padding changes the loss of" in found[name]
    assert found["right"] == "no error"
