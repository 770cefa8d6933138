"""Operations that PyTorch's exporter cannot write are written as those that it can."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import distir
from distir.facade.model_program import ModelProgram
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function


def result_of(program: ModelProgram, x: Tensor) -> np.ndarray:
    """What a program with one input and one result computes."""
    names = argument_names(entry_function(program.module))
    given = [program.weights.get(name, x.numpy()) for name in names]
    (found,) = run_program(program.module, given)
    return found


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_what_a_decomposition_writes_to_is_computed_anew(
    affine: bool, eps: float | None
) -> None:
    """PyTorch's RMS norm adds epsilon to the mean in place."""
    norm = nn.RMSNorm(6, eps=eps, elementwise_affine=affine)
    module = nn.Sequential(nn.Linear(6, 6), norm, nn.Tanh())
    x = torch.randn(4, 6)
    program = distir.import_model(module, (x,))
    found = result_of(program, x)
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=1e-6)
    norms = [op for op in program.module.walk() if op.name == "onnx.RMSNormalization"]
    assert len(norms) == affine, "a norm with a weight is one op"


class Rotated(nn.Module):
    """A rotary embedding of numbers in pairs, as LLaMA's authors wrote it."""

    def forward(self, x: Tensor) -> Tensor:
        turns = torch.arange(6.0).outer(torch.tensor([1.0, 0.1]))
        turns = torch.polar(torch.ones_like(turns), turns)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns.unsqueeze(-2)).flatten(-2)


def test_complex_numbers_get_dimensions() -> None:
    x = torch.randn(2, 6, 3, 4)
    found = result_of(distir.import_model(Rotated(), (x,)), x)
    np.testing.assert_allclose(found, Rotated()(x).numpy(), atol=1e-6)
