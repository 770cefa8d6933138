"""The list of a module's tensors follows the tensors that the module has now."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from distir.parallel.training.named_tensors import NamedTensors


def tied() -> Any:
    """Two layers that share a weight, and a buffer."""
    module: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module.register_buffer("mask", torch.ones(2))
    return module


def test_all_names_of_tied_parameters() -> None:
    module = tied()
    found = NamedTensors().of(module)
    assert set(found) == {
        "mask",
        *(f"{i}.{n}" for i in "01" for n in ("weight", "bias")),
    }
    assert found["0.weight"] is found["1.weight"]


def test_replaced_tensors_are_found() -> None:
    module, named = tied(), NamedTensors()
    before = named.of(module)
    assert named.of(module) is before
    module.mask = torch.zeros(2)
    assert named.of(module)["mask"] is module.mask
    module[0] = nn.Linear(2, 2)
    assert named.of(module)["0.bias"] is module[0].bias
    module[1].bias = None
    assert "1.bias" not in named.of(module)


def test_a_copied_module_has_its_own_tensors() -> None:
    module = tied()
    module.named = NamedTensors()
    assert module.named.of(module)["mask"] is module.mask
    copied = copy.deepcopy(module)
    assert copied.named.of(copied)["mask"] is copied.mask is not module.mask
