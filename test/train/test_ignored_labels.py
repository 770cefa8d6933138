"""A mean over the labels that count, split over a batch or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from xdsl.context import Context

from distir.frontends.models.basic import build_mlp
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.program import argument_names, entry_function


@pytest.mark.parametrize("distribution", [{}, {"d": 2}, {"d": 4}, {"d": 2, "t": 2}])
def test_ignored_labels_do_not_count(distribution: dict[str, int]):
    module = build_mlp(1, 8, 8)
    DifferentiatePass(ignore_index=-100, optimizer="none").apply(Context(), module)
    names = argument_names(entry_function(module))
    values = dict(zip(names, random_arguments(module, 0), strict=True))
    # One device of four has nothing but ignored labels.
    values["labels"] = np.array([1, -100, -100, -100, 0, 7, 3, -100])
    if distribution:
        DistributePass(**distribution).apply(Context(), module)
    loss, *gradients = run_program(module, list(values.values()))

    parameters = {
        name: torch.tensor(value, requires_grad=True)
        for name, value in values.items()
        if name not in ("labels", "input")
    }
    weight, bias = parameters.values()
    logits = (torch.tensor(values["input"]) @ weight + bias).relu()
    expected = F.cross_entropy(logits, torch.tensor(values["labels"]))
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
    for ours, parameter in zip(gradients, parameters.values(), strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(ours, parameter.grad.numpy(), rtol=1e-5, atol=1e-8)
