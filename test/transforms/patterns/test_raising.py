"""Attention of exported models becomes one op, which computes and trains the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support import models
from support.pipelines import arguments_of, assert_equal_results
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.builders import build_gpt
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass
from distir.program import argument_names, entry_function


def fused(module: ModuleOp) -> ModuleOp:
    """A verified copy after the pass."""
    copy = module.clone()
    RaisePatternsPass().apply(Context(), copy)
    copy.verify()
    return copy


def ops(module: ModuleOp) -> Counter[str]:
    """How many ops of each kind there are."""
    return Counter(op.name for op in module.walk())


@pytest.mark.parametrize("exporter", models.EXPORTERS)
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("outlined", [False, True])
def test_models(name: str, exporter: models.Exporter, outlined: bool) -> None:
    model = models.model(name)
    imported = models.imported(name, exporter)
    plain = imported.module.clone()
    if outlined:
        OutlineRepeatsPass().apply(Context(), plain)
    module = fused(plain)
    found = ops(module)
    layers = ops(plain)["onnx.Softmax"]
    assert found["onnx.Attention"] == layers and found["onnx.Softmax"] == 0
    values = {**imported.weights, **model.numpy_inputs}
    names = argument_names(entry_function(module))
    results = run_program(module, [np.asarray(values[n]) for n in names])
    for expected, result in zip(model.numpy_outputs.values(), results, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-5)


def step(module: ModuleOp, **options: Any) -> ModuleOp:
    """A distributed training step of a model."""
    module = module.clone()
    DifferentiatePass().apply(Context(), module)
    if options:
        DistributePass(**options).apply(Context(), module)
    module.verify()
    return module


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d": 2, "t": 2},
        {"t": 4, "sequence_parallel": True},
        {"p": 2, "k": 2, "checkpoint": "full"},
    ],
    ids=str,
)
def test_training(options: dict[str, Any]) -> None:
    """Fused attention is split by heads, and trains as what is written out does."""
    model = build_gpt(layers=2, d_model=16, heads=4, vocab=32, batch=4, seq=8)
    plain, module = step(model), step(fused(model), **options)
    assert ops(module)["train.attention_grad"] > 0
    arguments = arguments_of(plain)
    expected = run_program(plain, arguments)
    actual = run_program(module, arguments)
    assert_equal_results(plain, expected, actual, 1e-4)
