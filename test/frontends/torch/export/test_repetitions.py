"""What PyTorch's exporter is spared changes nothing of what it writes."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch
import torch.fx.proxy
from onnx_ir.schemas import OpSignature
from torch import nn

from distir.frontends.torch.export import repetitions
from distir.frontends.torch.export.repetitions import (
    warn_of_repetitions,
    without_repetitions,
)
from distir.frontends.torch.importer import import_torch


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
            patch.setattr(repetitions, "without_repetitions", contextlib.nullcontext)
            plain = import_torch(module, (x,), training=training)
        assert str(spared.module) == str(plain.module)
        assert "0.norm" in str(spared.module)  # the scopes


class _WithoutCode(torch.fx.GraphModule):
    """A graph's module that keeps its code under another name."""

    def recompile(self) -> Any:
        made = super().recompile()
        self._source = vars(self).pop("_code")
        return made


@pytest.mark.parametrize(
    ("owner", "name", "other", "missing"),
    [
        (OpSignature, "from_op_schema", None, "OpSignature.from_op_schema"),
        (torch.fx.proxy, "CapturedTraceback", None, "proxy.CapturedTraceback.extract"),
        (torch.fx, "GraphModule", _WithoutCode, "torch.fx.GraphModule._code"),
    ],
    ids=["schemas", "tracebacks", "code"],
)
def test_what_a_version_lacks_is_left_alone(
    owner: Any, name: str, other: Any, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if other is None:
            patch.delattr(owner, name)
        else:
            patch.setattr(owner, name, other)
        recompile = torch.fx.GraphModule.recompile
        with without_repetitions():
            assert torch.fx.GraphModule.recompile is recompile
        with pytest.warns(UserWarning, match=missing):
            warn_of_repetitions()


def test_modules_are_imported_without_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    expected = str(import_torch(module, (x,)).module)
    parts = (*repetitions._PARTS, ("torch.fx", "GraphModule.compile_again"))
    monkeypatch.setattr(repetitions, "_PARTS", parts)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = import_torch(module, (x,))
    assert str(found.module) == expected
    own = [w for w in told if "torch.fx.GraphModule.compile_again" in str(w.message)]
    assert len(own) == 1 and own[0].filename == __file__


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
