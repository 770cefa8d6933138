"""Calls of one parallel module with batches of many shapes, which tests run on several ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options, whole

WORDS, WIDTH, CLASSES = 16, 8, 12
LONGEST = 64


class Words(nn.Module):
    """Layers over embedded words, each of which sees those before it."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.shape[1]
        x = self.words(words) + self.places(torch.arange(length, device=words.device))
        seen = torch.ones(length, length, dtype=torch.bool, device=words.device).tril()
        for layer in self.layers:
            scores = (layer(x) @ x.transpose(1, 2)).masked_fill(~seen, float("-inf"))
            x = 0.5 * (x + torch.softmax(scores, -1) @ x)
        return self.head(x)


def batch(samples: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns words, and a class for each, of which some do not count."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (samples, length), generator=generator)
    labels = torch.randint(CLASSES, (samples, length), generator=generator)
    labels[:, -1] = -100
    return words, labels


def part(parallel: ParallelModule, tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's samples: parts differ by one sample if they must."""
    return tensor.tensor_split(parallel.data_ranks)[parallel.data_rank]


def plain_criterion(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, -2), labels.flatten())


def plain_loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(module(x).flatten(0, -2), y.flatten())


def worst(parallel: ParallelModule, plain: nn.Module) -> float:
    """The largest difference of a parameter of this rank, relative to its largest element."""
    found = 0.0
    for name, parameter in parallel.named_parameters():
        expected = plain.get_parameter(name).detach()
        apart = (whole(parameter.detach()) - expected).abs().max()
        found = max(found, float(apart / expected.abs().max()))
    return found


def trained_with_shapes(
    options: Options, shapes: list[tuple[int, int]], loss: Any = "cross_entropy"
) -> dict[str, Any]:
    """
    Trains with batches of these numbers of samples and lengths, beside PyTorch; the module is
    parallelized with the first. Returns the losses of both, their differences, and those in
    evaluation mode.
    """
    plain = Words()
    first = batch(*shapes[0], seed=0)
    parallel = parallelize(
        Words(),
        first[:1],
        loss=loss,
        labels=first[1] if callable(loss) else None,
        **options,
    )
    parallel.train()
    ours = torch.optim.SGD(parallel.parameters(), lr=0.01)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.01)
    losses: list[tuple[float, float]] = []
    for seed, shape in enumerate(shapes):
        x, y = batch(*shape, seed=seed)
        expected = plain_loss(plain, x, y)
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        found = parallel(part(parallel, x), part(parallel, y))
        ours.zero_grad()
        found.backward()
        ours.step()
        losses.append((found.item(), expected.item()))
    apart = worst(parallel, plain)
    parallel.eval()
    evaluated: list[tuple[float, float]] = []
    outputs = 0.0
    for shape in shapes[-2:]:
        x, y = batch(*shape, seed=100)
        with torch.no_grad():
            value = parallel(part(parallel, x), part(parallel, y))
            evaluated.append((value.item(), plain_loss(plain, x, y).item()))
            own = parallel(part(parallel, x))
            outputs = max(outputs, float((own - part(parallel, plain(x))).abs().max()))
    return {
        "losses": losses,
        "apart": apart,
        "evaluated": evaluated,
        "outputs": outputs,
    }


class Sum(nn.Module):
    """A module whose loss is a sum over samples, not a mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square().sum()


class WithSum(Sum):
    """A module that returns rows, and a number of all samples together."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x), x.sum()


def loss_of_first(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(outputs[0], labels)


class Normalised(nn.Module):
    """A module with batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.relu(self.norm(self.first(x))))


def message_of(call: Any) -> str:
    """The message of the DistIRError that a call raises."""
    try:
        call()
    except DistIRError as error:
        return str(error)
    return "no error"


def refused_batches(options: Options) -> dict[str, str]:
    """Returns the messages for batches that cannot be taken, or not rightly."""
    found: dict[str, str] = {}
    x, y = batch(8, 6, seed=0)
    parallel = parallelize(
        Words(), (x,), loss="cross_entropy", max_programs=2, check="off", **options
    )
    parallel.train()
    rank = parallel.data_rank
    found["lengths"] = message_of(
        lambda: parallel(x[:4, : 6 - rank], y[:4, : 6 - rank])
    )
    found["whole"] = message_of(lambda: parallel(x, y))
    found["labels"] = message_of(lambda: parallel(x[:4], y[: 4 - rank]))
    found["dimensions"] = message_of(lambda: parallel(x[0], y[0]))
    parallel(x[: 2 + rank], y[: 2 + rank])
    found["programs"] = message_of(lambda: parallel(x[:2, :4], y[:2, :4]))
    rows = torch.randn(8, WIDTH)
    summed = parallelize(Sum(), (rows,), **options)
    summed.train()
    summed(part(summed, rows))
    found["sum"] = message_of(lambda: summed(part(summed, rows[:3])))
    summed.eval()
    found["sum in evaluation"] = message_of(lambda: summed(part(summed, rows[:3])))
    both = parallelize(WithSum(), (rows,), loss=loss_of_first, labels=rows, **options)
    both.eval()
    found["together"] = message_of(lambda: both(part(both, rows[:3])))
    normalised = parallelize(Normalised(), (rows,), loss="mse", **options)
    normalised.train()
    last = part(normalised, rows[:3])
    found["statistics"] = message_of(lambda: normalised(last, last))
    return found


def one_whole_batch(options: Options) -> tuple[float, float]:
    """A step in which one rank alone is given as many samples as the example has."""
    x, y = batch(8, 6, seed=0)
    parallel = parallelize(Words(), (x[:4],), loss="cross_entropy", **options)
    parallel.train()
    own = slice(0, 4) if parallel.data_rank == 0 else slice(4, 6)
    loss = parallel(x[own], y[own])
    return loss.item(), plain_loss(Words(), x[:6], y[:6]).item()


def announced_shapes(options: Options) -> dict[str, Any]:
    """Compiles programs before they are needed, and returns what that leaves."""
    x, _ = batch(8, 6, seed=0)
    others = [batch(3, 6, seed=0), batch(4, 9, seed=0), batch(16, 6, seed=0)]
    parallel = parallelize(
        Words(), (x,), loss="cross_entropy", shapes=others, max_programs=4, **options
    )
    parallel.train()
    made = len(parallel._steps._programs)  # pyright: ignore[reportPrivateUsage]
    losses = [parallel(part(parallel, x), part(parallel, y)).item() for x, y in others]
    expected = [plain_loss(Words(), x, y).item() for x, y in others]
    return {
        "made": made,
        "after": len(parallel._steps._programs),  # pyright: ignore[reportPrivateUsage]
        "losses": list(zip(losses, expected, strict=True)),
    }


def evaluated_without_dropout(options: Options) -> list[tuple[float, float]]:
    """Validation losses of a module with dropout and running statistics, after a step."""
    torch.manual_seed(1)
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    plain = Normalised()
    parallel = parallelize(Normalised(), (x,), loss=F.mse_loss, labels=y, **options)
    parallel.train()
    parallel(part(parallel, x), part(parallel, y)).backward()
    plain.train()(x)  # moves the running statistics
    parallel.eval()
    plain.eval()
    found: list[tuple[float, float]] = []
    for size in (8, 5, 2):
        with torch.no_grad():
            value = parallel(part(parallel, x[:size]), part(parallel, y[:size]))
        found.append((value.item(), F.mse_loss(plain(x[:size]), y[:size]).item()))
        assert not value.requires_grad
    return found
