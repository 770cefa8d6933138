"""A tensor that an example gives at several places is an input at each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.models import EXPORTERS
from torch import nn

from distir.frontends.torch.importer import import_torch
from distir.frontends.torch.modules.inputs import distinct
from distir.frontends.torch.training import import_training_step
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, others: dict[str, Any]) -> torch.Tensor:
        first, second = others["both"]
        return self.layer(x) * first - second


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_tensor_given_three_times(exporter: Any) -> None:
    module = Scaled()
    x, first, second = torch.randn(3, 4, 4)
    overlapping = torch.zeros(5, 4)
    for example in (
        (x, {"both": (x, x)}),
        (overlapping[:4], {"both": (overlapping[1:], overlapping[:4])}),
        (module.layer.weight, {"both": (module.layer.weight, x)}),
    ):
        imported = import_torch(module, example, exporter=exporter)
        names = argument_names(entry_function(imported.module))
        assert len(names) == 5
        given = [tensor.numpy() for tensor in (x, first, second)]
        given += [imported.weights[name] for name in names[3:]]
        (found,) = run_program(imported.module, given)
        expected = module(x, {"both": (first, second)}).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_step_that_pytorch_differentiates() -> None:
    x = torch.randn(4, 4)
    step = import_training_step(Scaled(), (x, {"both": (x, x)}), loss="mse")
    names = argument_names(entry_function(step.module))
    assert {"x", "others.both.0", "others.both.1"} <= set(names)


def test_what_is_alone_is_not_copied() -> None:
    module, x = Scaled(), torch.randn(4, 4)
    (same, copied), _ = distinct(module, (x, x[1:]), None)
    assert same is x
    assert copied.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
