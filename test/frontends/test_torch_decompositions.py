"""Operations that PyTorch's exporter cannot write are written as those that it can."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import distir
from distir.interpreters.reference import run_program


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
    values = {**program.weights, "input": x.detach().numpy()}
    names = [f"{p}.{q}" for p in "01" for q in ("weight", "bias")]
    given = [values[name] for name in ("input", *names) if name in values]
    (found,) = run_program(program.module, given)
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=1e-6)
    norms = [op for op in program.module.walk() if op.name == "onnx.RMSNormalization"]
    assert len(norms) == affine, "a norm with a weight is one op"
