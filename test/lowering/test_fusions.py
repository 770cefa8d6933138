"""Exported models lower to single PyTorch calls, and give what PyTorch gives."""

import re
from collections import Counter

import numpy as np
import pytest
from support import models
from support.lowering_cases import run_here

from distir.lowering.program_source import program_source
from distir.program import argument_names, entry_function

# Calls in a model of two layers; every other product must be a linear layer.
CALLS = {
    "mlp": {"F.linear": 3},
    "gpt2": {
        "F.scaled_dot_product_attention": 2,
        "F.layer_norm": 5,
        "F.gelu": 2,
        "F.linear": 9,
    },
    "bert": {
        "F.scaled_dot_product_attention": 2,
        "F.layer_norm": 5,
        "F.gelu": 2,
        "F.linear": 13,
    },
    "llama": {
        "F.scaled_dot_product_attention": 2,
        "F.rms_norm": 5,
        "F.silu": 2,
        "F.linear": 15,
    },
}


@pytest.mark.parametrize("exporter", models.EXPORTERS)
@pytest.mark.parametrize("name", models.MODELS)
def test_models(name: str, exporter: models.Exporter) -> None:
    model = models.model(name)
    imported = models.imported(name, exporter)
    text = program_source(imported.module).text
    found = Counter(re.findall(r"F\.\w+", text))
    assert {call: found[call] for call in CALLS[name]} == CALLS[name]
    for written_out in ("torch.erf", "torch.tanh(mul", "F.softmax", "torch.pow", " @ "):
        assert written_out not in text
    values = {**imported.weights, **model.numpy_inputs}
    names = argument_names(entry_function(imported.module))
    results = run_here(imported.module, [np.asarray(values[n]) for n in names])
    for expected, result in zip(model.numpy_outputs.values(), results, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-5)
