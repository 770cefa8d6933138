"""The structure of a module's outputs, which packages keep as text."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree
from transformers.modeling_outputs import CausalLMOutput

from distir.frontends.torch.importer import import_torch


class Shaped(nn.Module):
    """Doubles its input, and gives it in a structure."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        y = 2 * x
        return {
            "tensor": y,
            "list": [y, (y + 1, y + 2)],
            "dictionary": OrderedDict(a=y, b={1: y + 1}),
            "model output": CausalLMOutput(logits=y),
            "keys without a text": {(1, 2): y},
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "has_text"),
    [
        ("tensor", True),
        ("list", True),
        ("dictionary", True),
        ("model output", True),
        ("keys without a text", False),
    ],
)
def test_text_makes_the_structure_of_the_module(kind: str, has_text: bool) -> None:
    """A text that would give another structure, as JSON has no keys of tuples, is none."""
    module, x = Shaped(kind), torch.ones(2, 3)
    text = import_torch(module, (x,), check=False).output
    assert bool(text) == has_text
    if has_text:
        found = _pytree.tree_structure(module(x))
        assert _pytree.treespec_loads(text) == found
