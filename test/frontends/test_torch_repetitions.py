"""What PyTorch's exporter is spared changes nothing of what it writes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from distir.frontends import torch_repetitions
from distir.frontends.torch_importer import import_torch
from distir.frontends.torch_repetitions import without_repetitions


class _Layer(nn.Module):
    """Mixed types, a region without gradients, and an operation that is decomposed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = (x.abs().sum(-1, keepdim=True) > 1).long() + 1
        return x + self.norm(self.linear(x)) * scale + nn.functional.silu(x).roll(1, 0)


def test_the_program_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(_Layer(), _Layer()), torch.randn(4, 8)
    for training in (False, True):
        spared = import_torch(module, (x,), training=training)
        with monkeypatch.context() as patch:
            patch.setattr(
                torch_repetitions, "without_repetitions", contextlib.nullcontext
            )
            plain = import_torch(module, (x,), training=training)
        assert str(spared.module) == str(plain.module)
        assert "0.norm" in str(spared.module)  # the scopes


def test_graphs_are_compiled_when_they_are_needed() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x + x

    traced: Any = torch.fx.symbolic_trace(doubled)
    x = torch.ones(3)
    with without_repetitions():
        other: Any = torch.fx.symbolic_trace(doubled)
        for module in (traced, other):
            assert torch.equal(module(x), 2 * x)
            for node in module.graph.nodes:
                if node.op == "call_function":
                    node.target = torch.mul
            module.recompile()
            assert "_code" not in vars(module)
        assert "mul" in traced.code
        assert torch.equal(traced(x), x)
    # That of the other one is compiled by its first call, whenever that is.
    assert torch.equal(other(3 * x), 9 * x)
    assert "mul" in other.code
    traced.recompile()
    assert "_code" in vars(traced)
