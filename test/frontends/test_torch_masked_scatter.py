"""What scatters a source to the places of a mask has known shapes, and PyTorch's results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distir.frontends.torch_importer import import_torch
from distir.interpreters.reference import run_program


class Rows(nn.Module):
    """Images among words: whole rows of the source, behind a cast and a move."""

    def forward(self, x: Tensor, chosen: Tensor, source: Tensor) -> Tensor:
        mask = (chosen > 0).unsqueeze(-1).expand_as(x).to(x.device)
        return x.masked_scatter(mask, source) * 2


class Elements(nn.Module):
    """Elements of a source that has more of them than there are places."""

    def forward(self, x: Tensor, chosen: Tensor, source: Tensor) -> Tensor:
        return x.masked_scatter((chosen > 0).unsqueeze(-1) & (x > 0), source[1:]) * 2


@pytest.mark.parametrize("make", [Rows, Elements])
def test_masked_scatter(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 4, 5)
    chosen = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]])
    given = (x, chosen, torch.randn(6, 5))
    program = import_torch(module, given).module
    assert all(op.name != "onnx.NonZero" for op in program.walk())
    (found,) = run_program(program, [value.numpy() for value in given])
    np.testing.assert_allclose(found, module(*given).numpy())
