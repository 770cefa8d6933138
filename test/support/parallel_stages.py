"""Parallel modules whose programs would have parameters on different stages, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize
from distir.parallel.rank_program import RankProgram
from support.parallel_scripts import Options
from support.parallel_shapes import part, plain_loss, worst

WORDS, WIDTH, CLASSES = 16, 8, 12


class Attending(nn.Module):
    """Layers whose work grows with the length, and behind them some that attend to all words: stages
    of equal work begin elsewhere where words are more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mixing = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, WIDTH))
            for _ in range(4)
        )
        self.attending = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.mixing:
            x = x + layer(x)
        for layer in self.attending:
            scores = layer(x) @ x.transpose(1, 2)
            x = 0.5 * (x + torch.softmax(scores, -1) @ x)
        return self.head(x)


def batch(samples: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (samples, length), generator=generator)
    return words, torch.randint(CLASSES, (samples, length), generator=generator)


def programs_of(parallel: ParallelModule) -> list[RankProgram]:
    """All programs that a module has compiled."""
    steps = parallel._steps._programs  # pyright: ignore[reportPrivateUsage]
    return [*steps.values(), *parallel._evaluations.values()]  # pyright: ignore[reportPrivateUsage]


def moved_parameters(parallel: ParallelModule) -> list[str]:
    """The parameters that a program has in other parts, or on other ranks, than the first."""
    first, *others = programs_of(parallel)
    kept = {s.name: s for s in first.all_arguments if s.role == "parameter"}
    return [
        spec.name
        for program in others
        for spec in program.all_arguments
        if spec.name in kept
        and program.sharding_of(spec) != first.sharding_of(kept[spec.name])
    ]


def trained_with_lengths(
    options: Options, lengths: list[int], samples: int
) -> dict[str, Any]:
    """
    Trains and evaluates with sequences of these lengths, beside PyTorch. Returns losses of
    both, differences, and the parameters that programs have moved.
    """
    plain = Attending()
    x, _ = batch(samples, lengths[0], seed=0)
    parallel = parallelize(Attending(), (x,), loss="cross_entropy", **options)
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    losses: list[tuple[float, float]] = []
    outputs = 0.0
    for seed, length in enumerate(lengths):
        x, y = batch(samples, length, seed)
        own = part(parallel, x), part(parallel, y)
        expected = plain_loss(plain, x, y)
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        parallel.train()
        ours.zero_grad()
        found = parallel.step(*own)
        ours.step()
        losses.append((found.item(), expected.item()))
        parallel.eval()
        with torch.no_grad():
            losses.append((parallel(*own).item(), plain_loss(plain, x, y).item()))
            apart = (parallel(own[0]) - part(parallel, plain(x))).abs().max()
        outputs = max(outputs, float(apart))
    return {
        "losses": losses,
        "outputs": outputs,
        "apart": worst(parallel, plain),
        "moved": moved_parameters(parallel),
        "own": sorted(name for name, _ in parallel.named_parameters()),
    }
