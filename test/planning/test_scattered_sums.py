"""Scatters that add are sums over their index places, which devices and micro-batches split."""

from __future__ import annotations

import pytest
import torch
from support.pipelines import assert_same
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.tensors import shape_of
from distir.frontends.torch.importer import import_torch
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass


class Pooled(nn.Module):
    """Adds up what a layer makes of each of 32 rows, in one of 8 places."""

    def __init__(self, by: str):
        super().__init__()
        self.layer, self.after = nn.Linear(6, 4), nn.Linear(4, 4)
        self.by = by

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        rows = torch.tanh(self.layer(x))
        zeros = torch.zeros(8, 4)
        if self.by == "index_add":
            found = zeros.index_add(0, place[:, 0], rows)
        else:
            found = zeros.scatter_add(0, place.expand(-1, 4), rows)
        return self.after(found)


class LookedUp(nn.Module):
    """Looks up elements of a table by two numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 7))

    def forward(self, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return self.table[row, column]


def step(module: nn.Module, *inputs: torch.Tensor) -> ModuleOp:
    torch.manual_seed(0)
    found = import_torch(module, inputs).module
    FoldShapesPass().apply(Context(), found)
    DifferentiatePass(loss="mse").apply(Context(), found)
    return found


@pytest.mark.parametrize("by", ["index_add", "scatter_add"])
def test_rows_stay_where_they_are(by: str) -> None:
    """Devices add up their own rows, and exchange sums: 8 places instead of 32 rows."""
    inputs = torch.randn(32, 6), torch.randint(0, 8, (32, 1))
    program = assert_same(step(Pooled(by), *inputs), d=4)
    gathered = [
        shape_of(op.result.type) for op in program.walk() if isinstance(op, AllGatherOp)
    ]
    assert not any(32 in sizes for sizes in gathered), gathered


def test_terms_of_micro_batches_add_up() -> None:
    """The gradient of a table of which every micro-batch and device reads some elements."""
    row, column = torch.randint(0, 5, (16, 3)), torch.randint(0, 7, (16, 3))
    assert_same(step(LookedUp(), row, column), d=2, k=4)
