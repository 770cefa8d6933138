"""Steps with NaN, which tests run on several ranks."""

from __future__ import annotations

import torch
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options

WIDTH = 8


class Root(nn.Module):
    """A layer that takes the square root of numbers that may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.full((WIDTH,), 100.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.sqrt(self.linear(x) + self.bias))


class Roots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Root() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def steps_with_nan(options: Options) -> list[str]:
    """
    Messages of steps of a module without NaN, with NaN in its third layer, and with NaN in the
    input.
    """
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    parallel = parallelize(Roots(), (x,), loss="mse", detect_nan=True, **options)
    parallel.train()
    size = len(x) // parallel.data_ranks
    own = slice(parallel.data_rank * size, (parallel.data_rank + 1) * size)
    found: list[str] = []
    for change in ("none", "layer", "input"):
        batch = x[own].clone()
        for name, parameter in parallel.named_parameters():
            if name == "layers.2.bias":
                parameter.data.fill_(-100.0 if change == "layer" else 100.0)
        if change == "input":
            batch[0, 0] = float("nan")
        try:
            parallel(batch, y[own]).backward()
            found.append("no error")
        except DistIRError as error:
            found.append(str(error))
    return found
