"""Steps whose metrics are read, which tests run on several ranks."""

from __future__ import annotations

import torch
from torch import nn

from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options

WIDTH = 8


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def batches() -> list[torch.Tensor]:
    """Inputs and targets of a training step, and of an evaluation."""
    torch.manual_seed(1)
    return [torch.randn(8, WIDTH) for _ in range(4)]


def metrics_of_steps(options: Options) -> list[dict[str, float]]:
    """The metrics before the first step, after it and its clipping, and after an evaluation."""
    x, y, x_after, y_after = batches()
    parallel = parallelize(module(), (x,), loss="mse", **options)
    size = len(x) // parallel.data_ranks
    own = slice(parallel.data_rank * size, (parallel.data_rank + 1) * size)
    found = [parallel.metrics()]
    parallel.train()
    parallel(x[own], y[own]).backward()
    parallel.clip_grad_norm_(0.1)
    found.append(parallel.metrics())
    parallel.eval()
    with torch.no_grad():
        parallel(x_after[own], y_after[own])
    return [*found, parallel.metrics()]
