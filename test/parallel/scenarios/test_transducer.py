"""
An RNN transducer: an encoder, a prediction network, and a joint network, with the sum over
all alignments as the loss, in the script or in the program.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.scenarios import STEPS, Plain, Trained, Training, cases, check
from torch import nn

FRAMES, WORDS, FEATURES, WIDTH, SYMBOLS, BLANK = 5, 3, 6, 8, 6, 0

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2, t=2, zero=1),
]


class Transducer(nn.Module):
    """Returns the logarithms of probabilities of symbols, for each frame and each word."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(FEATURES, WIDTH, batch_first=True)
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.prediction = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.joint = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, sound: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        frames, _ = self.encoder(sound)
        started = torch.nn.functional.pad(words, (1, 0), value=BLANK)
        said, _ = self.prediction(self.embedding(started))
        both = torch.tanh(frames[:, :, None] + said[:, None])
        return self.joint(both).log_softmax(-1)


def transducer_loss(
    chances: torch.Tensor, labels: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """
    The mean of the negative logarithms of the probabilities of all alignments. The labels
    are the words [B, U], and the numbers of frames and of words of each sample.
    """
    words, frames, counts = labels
    blank = chances[..., BLANK]
    said = chances[:, :, :-1].gather(
        -1, words[:, None, :, None].expand(-1, FRAMES, -1, 1)
    )
    said = said[..., 0]
    alpha = [torch.zeros_like(blank[:, 0, 0])]
    for u in range(WORDS):
        alpha.append(alpha[-1] + said[:, 0, u])
    table = [torch.stack(alpha, 1)]
    for t in range(1, FRAMES):
        waited = table[-1] + blank[:, t - 1]
        alpha = [waited[:, 0]]
        for u in range(WORDS):
            alpha.append(torch.logaddexp(waited[:, u + 1], alpha[-1] + said[:, t, u]))
        table.append(torch.stack(alpha, 1))
    every = torch.stack(table, 1)
    # `gather` takes from each own row, which `every[arange, ...]` would hide.
    ends = ((frames - 1) * (WORDS + 1) + counts).clamp(min=0)[:, None]
    return -(every + blank).flatten(1).gather(1, ends).mean()


def batch(side: Plain, step: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Sounds, and the words with the numbers of frames and of words."""
    generator = torch.Generator().manual_seed(step)
    sound = side.data(step, FRAMES, FEATURES)
    size = len(sound)
    words = torch.randint(1, SYMBOLS, (size, WORDS), generator=generator)
    frames = torch.randint(2, FRAMES + 1, (size,), generator=generator)
    counts = torch.randint(1, WORDS + 1, (size,), generator=generator)
    return sound, (words, frames, counts)


def outside(side: Plain) -> Trained:
    torch.manual_seed(0)
    sound, labels = batch(side, 0)
    model = side.make(Transducer(), sound, labels[0])
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        sound, labels = batch(side, step)
        own = [side.part(label) for label in labels]
        loss = transducer_loss(
            model(side.part(sound), own[0]), (own[0], own[1], own[2])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(side.mean(loss))
    return Trained(losses, [model])


def inside(side: Plain) -> Trained:
    torch.manual_seed(0)
    sound, labels = batch(side, 0)
    options = {"loss": transducer_loss, "labels": labels}
    model = side.make(Transducer(), sound, labels[0], **options)
    optimizer = side.optimizer(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        sound, labels = batch(side, step)
        loss = side.loss(model, transducer_loss, sound, labels[0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, [model])


@pytest.mark.parametrize("training, plan", cases(PLANS), ids=str)
def test_transducer(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "outside", training, plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training, plan", cases([*PLANS, dict(p=2), dict(p=2, k=2)]), ids=str
)
def test_with_the_loss_inside(training: Training, plan: dict[str, Any]) -> None:
    check(__file__, "inside", training, plan)
