"""Exported models lower to single PyTorch calls, and give what PyTorch gives."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from support import models
from support.lowering_cases import run_here
from torch.overrides import TorchFunctionMode

from distir.lowering.program_source import program_source
from distir.program import argument_names, entry_function

# Calls in a model of two layers; every other product must be a linear layer.
CALLS = {
    "mlp": {"linear": 3},
    "gpt2": {
        "scaled_dot_product_attention": 2,
        "layer_norm": 5,
        "gelu": 2,
        "linear": 9,
    },
    "bert": {
        "scaled_dot_product_attention": 2,
        "layer_norm": 5,
        "gelu": 2,
        "linear": 13,
    },
    "llama": {
        "scaled_dot_product_attention": 2,
        "rms_norm": 5,
        "silu": 2,
        "linear": 15,
    },
}


class Calls(TorchFunctionMode):
    """Counts calls of PyTorch's functions by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "exporter"), models.EXPORTS)
def test_models(name: str, exporter: models.Exporter) -> None:
    model = models.model(name)
    imported = models.imported(name, exporter)
    text = program_source(imported.module).text
    for written_out in ("torch.erf", "torch.tanh(mul", "F.softmax", "torch.pow", " @ "):
        assert written_out not in text
    values = {**imported.weights, **model.numpy_inputs}
    names = argument_names(entry_function(imported.module))
    with Calls() as calls:
        results = run_here(imported.module, [np.asarray(values[n]) for n in names])
    found = calls.counts
    assert {call: found[call] for call in CALLS[name]} == CALLS[name]
    for expected, result in zip(model.numpy_outputs.values(), results, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-5)
