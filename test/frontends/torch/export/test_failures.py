"""Errors about what PyTorch's exporters cannot write name the user's operation and line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from distir.errors import DistIRError
from distir.frontends.torch.importer import import_torch


class Smallest(nn.Module):
    """Computes something that no exporter writes, in a part of a module."""

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * 2
        return torch.kthvalue(scaled, 2).values


def test_operation_file_and_line_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Linear(8, 8), Smallest())
    message = (
        r"cannot write the operation 'kthvalue' of .*test_failures.py, line 18: "
        r"`return torch.kthvalue\(scaled, 2\).values`; give other inputs"
    )
    with pytest.raises(DistIRError, match=message):
        import_torch(module, (torch.rand(4, 8),))
    printed = capfd.readouterr()
    assert "graph" not in printed.out + printed.err
