"""The kernels that DistIR brings, each compared with what it takes the place of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.schedules import assert_same_results, gpt, scheduled
from support.training_programs import distributed
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.kernel import kernels as kernels_of
from distir.frontends.torch.importer import import_torch
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.launch.packages import Spawner, run_package
from distir.lowering.kernel_files import OWN
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.raise_patterns import RaisePatternsPass
from distir.program import argument_names, entry_function, result_names
from distir.scheduling import Kernel, Schedule, kernels, patterns
from distir.scheduling.kernel_check import KernelCheck, kernel_with_gradient
from distir.scheduling.tracing import op


class Block(nn.Module):
    """The layer of a model that normalises behind its sums, and a loss of its head."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm, self.last = nn.LayerNorm(16), nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)
        self.reduction = reduction

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = F.gelu(x @ self.up.weight.T + self.up.bias)
        h = self.norm(h @ self.down.weight.T + self.down.bias + x)
        h = self.last(F.dropout(h, 0.1, self.training) + x)
        return F.cross_entropy(self.head(h), labels, reduction=self.reduction)


def block(reduction: str = "mean") -> ModuleOp:
    inputs = torch.randn(8, 16), torch.randint(0, 40, (8,))
    module = import_torch(Block(reduction).eval(), inputs).module
    RaisePatternsPass().apply(Context(), module)
    return module


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of DistIR's kernels are modules, for a test."""
    monkeypatch.syspath_prepend(OWN)
    yield
    for file in OWN.glob("*.py"):
        sys.modules.pop(file.stem, None)


def checked(module: ModuleOp) -> int:
    """How many kernels of a program, and gradients of these, are right."""
    count = 0
    for name in list(kernels_of(module)):
        for kernel in kernel_with_gradient(module.clone(), name):
            file, _, function = kernel.implementation.data.partition(":")
            functions = import_module(file)
            if hasattr(functions, "CHUNK"):
                functions.CHUNK = 100  # two rows at a time
            KernelCheck(kernel, getattr(functions, function)).run()
            count += 1
    return count


def with_reduction(reduction: str) -> Callable[..., object]:
    def pattern(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> object:
        scores = op("Gemm", x, w, transB=1)
        return F.cross_entropy(scores, labels, reduction=reduction)

    return pattern


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("pattern", "kernel", "rule"),
    [
        (patterns.bias_gelu, kernels.bias_gelu, "[a, b], [b] -> [a, b]"),
        (
            patterns.bias_add_norm,
            kernels.bias_add_norm,
            "[a, 16], [16], [a, 16], [16], [16] -> [a, 16]",
        ),
        (
            patterns.add_norm,
            kernels.add_norm,
            "[a, 16], [a, 16], [16], [16] -> [a, 16]",
        ),
        (
            patterns.linear_cross_entropy,
            kernels.linear_cross_entropy,
            "[8, a], [40, a], [8] -> [] keep a",
        ),
        (
            with_reduction("sum"),
            kernels.linear_cross_entropy.having(reduction="sum"),
            "[a, b], [40, b], [a] -> [] keep b",
        ),
        (
            with_reduction("none"),
            kernels.linear_cross_entropy.having(reduction="none"),
            "[a, b], [40, b], [a] -> [a] keep b",
        ),
    ],
)
def test_kernels_of_layers(
    pattern: Callable[..., object], kernel: Kernel, rule: str
) -> None:
    reduction = kernel.options.get("reduction", "mean")
    module = block(str(reduction))
    s = Schedule()
    s.find(pattern).replace(kernel)
    found = scheduled(module, s)
    (made, *_) = kernels_of(found).values()
    assert made.rule.data == rule
    assert checked(found) == 2
    assert_same_results(module, distributed(found, d=2))


@pytest.mark.usefixtures("own")
def test_flash_attention_of_packed_heads() -> None:
    s = Schedule()
    kernel = kernels.attention.having(causal=1, head_size=4)
    s.find(patterns.causal_attention).replace(kernel)
    assert checked(scheduled(gpt(), s)) == 2


def test_a_program_of_shipped_kernels_runs_without_files(
    tmp_path: Path, spawner: Spawner
) -> None:
    s = Schedule()
    layers = s["transformer.h.*"]
    kernel = kernels.attention.having(causal=1, head_size=4)
    layers.find(patterns.causal_attention).replace(kernel)
    gelu = kernels.bias_gelu.having(approximate="tanh")
    layers.find(patterns.bias_gelu_tanh).replace(gelu)
    module = gpt(layers=2)
    found = scheduled(module, s)
    for each in (module, found):
        DifferentiatePass(optimizer="sgd", learning_rate=0.1).apply(Context(), each)
    package = write_package(distributed(found, t=2), tmp_path)
    assert sorted(file.name for file in (tmp_path / "user_kernels").iterdir()) == [
        "__init__.py",
        "bias_gelu.py",
        "flash_attention.py",
    ]
    arguments = random_arguments(module, 0)
    names = argument_names(entry_function(module))
    results = run_package(
        package, inputs=dict(zip(names, arguments, strict=True)), spawner=spawner
    )
    wanted = run_program(module, arguments)
    for name, value in zip(result_names(entry_function(module)), wanted, strict=True):
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5)
