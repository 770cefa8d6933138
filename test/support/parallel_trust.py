"""Parallel modules whose programs differ from the module, which tests run on several ranks."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options


class Branch(nn.Module):
    """Takes one of two layers, by the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns four numbers for each row."""
        y = torch.relu(self.first(x))
        return self.norm(self.a(y) if x.sum() > 0 else self.b(y))


def errors_of_steps(options: Options) -> dict[str, str]:
    """
    Returns what `parallelize` and the first two steps say: without `allow`, on inputs that go
    the way of the example, and on others.
    """
    torch.manual_seed(0)
    module, x, y = Branch(), torch.rand(8, 4), torch.randn(8, 4)
    found: dict[str, str] = {}

    def said(name: str, run: Any) -> Any:
        try:
            result = run()
        except DistIRError as error:
            found[name] = str(error)
            return None
        found[name] = ""
        return result

    said("refused", lambda: parallelize(module, (x,), loss="mse", **options))
    for name, sign in (("same way", 1.0), ("other way", -1.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            allow = ("control-flow",)
            parallel = parallelize(
                module, (x,), loss="mse", check="step", allow=allow, **options
            )
        rows = slice(
            parallel.data_rank * 8 // parallel.data_ranks,
            (parallel.data_rank + 1) * 8 // parallel.data_ranks,
        )
        given = sign * x[rows], y[rows]
        said(name, lambda given=given, parallel=parallel: parallel.step(*given))
        said(f"{name} again", lambda given=given, parallel=parallel: parallel(*given))
    return found
