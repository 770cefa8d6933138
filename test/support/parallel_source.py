"""What becomes of the module that a script gives to `parallelize`: for a test on ranks."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn

import distir
from distir.errors import DistIRError
from distir.parallel.packages import shared_package


class Block(nn.Module):
    """A layer with a residual."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Words(nn.Module):
    """A model of words with a list of layers and tied embeddings."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.words = nn.Embedding(32, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def made() -> Words:
    """Returns the model, the same on all ranks."""
    torch.manual_seed(0)
    return Words()


def bytes_of_parameters(module: nn.Module) -> int:
    """Returns the bytes of the storages of this rank's parameters."""
    storages = {
        id(s): s
        for p in module.parameters()
        for s in [getattr(p, "_local_tensor", p).untyped_storage()]
    }
    return sum(storage.nbytes() for storage in storages.values())


def freed_source(options: dict[str, Any]) -> dict[str, Any]:
    """Parallelizes a model that nothing else holds. Returns what is left of it."""
    model: Any = made()
    whole = bytes_of_parameters(model)
    values = [weakref.ref(p.untyped_storage()) for p in model.parameters()]
    ids = torch.arange(32).reshape(4, 8)
    model = distir.parallelize(model, (ids,), loss="cross_entropy", **options)
    gc.collect()
    own = ids.chunk(model.data_ranks)[model.data_rank]
    losses = [float(model(own, own))]
    # Another length is another program, compared with a module that has random values.
    losses.append(float(model(own[:, :4].contiguous(), own[:, :4].contiguous())))
    plain = made()
    wanted = [
        float(nn.functional.cross_entropy(plain(x).flatten(0, 1), x.flatten()))
        for x in (ids, ids[:, :4])
    ]
    return {
        "alive": sum(value() is not None for value in values),
        "part": bytes_of_parameters(model) / whole,
        "source": {p.device.type for p in model.source.parameters()},
        "layers": [type(model.layers).__name__, type(model.layers[0]).__name__],
        "named": sorted(n for n, _ in model.layers[0].named_parameters()),
        "losses": losses,
        "wanted": wanted,
    }


def kept_source(options: dict[str, Any]) -> dict[str, Any]:
    """Parallelizes a model that the script keeps. Returns what it sees of it."""
    plain = made()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    ids = torch.arange(32).reshape(4, 8)
    model = distir.parallelize(plain, (ids,), loss="cross_entropy", **options)
    same = model.source is plain
    after = plain.state_dict()
    return {
        "same": same,
        "values": all(bool((after[n] == value).all()) for n, value in before.items()),
        "classes": [type(plain).__name__, type(plain.layers).__name__],
    }


def failed_start(how: str) -> tuple[str, str]:
    """Returns the name and the text of the error if making a package fails on rank 0."""

    def make() -> dict[str, bytes]:
        raise ValueError("too large") if how == "wrong value" else KeyError(object())

    try:
        shared_package(lambda: None, make)
    except (DistIRError, KeyError, ValueError) as error:
        return type(error).__name__, str(error)
    return "", ""
