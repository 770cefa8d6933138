"""What a module checks of its values is no part of the program."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import distir
from distir.interpreters.reference import run_program


class _Checked(nn.Module):
    """Checks values in each way that can be exported."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all(x > -100)
        torch._assert_async((x < 100).all())
        return torch.relu(x)


def test_checks_of_values_are_left_out() -> None:
    x = torch.randn(4, 6)
    program = distir.import_model(_Checked(), (x,))
    names = [op.name for op in program.module.walk() if op.name.startswith("onnx.")]
    assert names == ["onnx.Relu"]
    (found,) = run_program(program.module, [x.numpy()])
    np.testing.assert_array_equal(found, torch.relu(x).numpy())
