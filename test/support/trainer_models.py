"""A small model that returns its loss, its data, and ranks as torchrun starts them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import whole

WORDS, WIDTH, LENGTH, BATCH = 16, 8, 6, 8

Arrays = dict[str, npt.NDArray[Any]]


class Chain(nn.Module):
    """Predicts the label of each word, in f64; returns the loss and the logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        # Decay finds it by its class alone; programs have its epsilon in f32.
        self.ln_1 = nn.LayerNorm(WIDTH, eps=2**-17)
        self.head = nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return self.of(input_ids, labels, None)

    def of(self, input_ids: torch.Tensor, labels: torch.Tensor, items: Any) -> Any:
        x = self.words(input_ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        logits = self.head(self.ln_1(x))
        kind = "mean" if items is None else "sum"
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=kind)
        return {"loss": loss if items is None else loss / items, "logits": logits}


class CountedChain(Chain):
    """The same, with the mean over all labels of a step, as transformers' models have it."""

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, **given: Any
    ) -> dict[str, torch.Tensor]:
        return self.of(input_ids, labels, given.get("num_items_in_batch"))


class Sentences(Dataset[Any]):
    """Words and their labels, some of which do not count."""

    def __init__(self, count: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (count, LENGTH)
        self.words = torch.randint(WORDS, shape, generator=generator)
        self.labels = torch.randint(WORDS, shape, generator=generator)
        for row, more in enumerate(range(count)):
            self.labels[row, : more % 4] = -100

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def under_torchrun() -> None:
    """Sets what torchrun sets, for this rank of a process group."""
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world)
    os.environ.update(LOCAL_WORLD_SIZE=world, MASTER_ADDR="127.0.0.1")


def example() -> dict[str, torch.Tensor]:
    """A global batch."""
    data = Sentences(BATCH)
    return {"input_ids": data.words, "labels": data.labels}


def parallel_chain(
    options: dict[str, Any], kind: type[Chain] = Chain
) -> ParallelModule:
    """The model on all ranks, in training mode."""
    parallel = parallelize(kind(), (), example(), **options)
    parallel.train()
    return parallel


def values(module: nn.Module) -> Arrays:
    """The whole parameters of a module."""
    return {n: whole(p).clone().numpy() for n, p in module.named_parameters()}


def apart(found: Arrays, expected: Arrays) -> float:
    """
    The largest difference of a parameter, relative to its largest element. In a pipeline, a
    rank has those of its own stages.
    """
    assert found and found.keys() <= expected.keys()
    return max(
        float(np.abs(v - expected[n]).max() / np.abs(expected[n]).max())
        for n, v in found.items()
    )
