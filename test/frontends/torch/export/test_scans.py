"""Scans of selective state spaces are one op for each layer, and compute what PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.mamba import modeling_mamba
from xdsl.context import Context

from distir.dialects.train_ops.selective_scan import SelectiveScanOp
from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.importer import import_torch
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.program import argument_names, entry_function, result_names

WORDS, LENGTH, LAYERS = 32, 12, 2
SIZES: dict[str, Any] = dict(
    vocab_size=WORDS,
    hidden_size=8,
    state_size=4,
    num_hidden_layers=LAYERS,
    time_step_rank=2,
    tie_word_embeddings=False,
    use_cache=False,
)


def mamba() -> nn.Module:
    return transformers.MambaForCausalLM(transformers.MambaConfig(**SIZES))


def falcon_mamba() -> nn.Module:
    config = transformers.FalconMambaConfig(**SIZES)
    return transformers.FalconMambaForCausalLM(config)


@cache
def made(make: Callable[[], nn.Module]) -> nn.Module:
    """A module in evaluation mode, whose parameters are no zeros or ones."""
    torch.manual_seed(0)
    module = make().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module


@cache
def imported(module: nn.Module, length: int) -> ImportedModel:
    found = import_torch(module, (torch.zeros(2, length, dtype=torch.int64),))
    FoldShapesPass().apply(Context(), found.module)
    return found


def run(
    program: ImportedModel, given: Mapping[str, Tensor]
) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the results of a program by name."""
    function = entry_function(program.module)
    values = {**program.weights, **{n: v.numpy() for n, v in given.items()}}
    results = run_program(program.module, [values[n] for n in argument_names(function)])
    return dict(zip(result_names(function), results, strict=True))


def scans(program: ImportedModel) -> int:
    return sum(isinstance(op, SelectiveScanOp) for op in program.module.walk())


@pytest.mark.parametrize(
    "make", [mamba, pytest.param(falcon_mamba, marks=pytest.mark.slow)]
)
def test_forward_and_gradients(make: Callable[[], nn.Module]) -> None:
    module = made(make)
    words = torch.randint(0, WORDS, (2, LENGTH))
    labels = words.flip(1)
    program = imported(module, LENGTH)
    assert scans(program) == LAYERS
    logits = module(words).logits
    (found,) = run(program, {"input_ids": words}).values()
    np.testing.assert_allclose(found, logits.detach().numpy(), rtol=1e-4, atol=1e-4)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    step = replace(program, module=program.module.clone())
    DifferentiatePass(loss="cross_entropy", optimizer="sgd", learning_rate=1.0).apply(
        Context(), step.module
    )
    after = run(step, {"input_ids": words, "labels": labels})
    assert abs(after["loss"] - loss.item()) < 1e-5
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        expected = parameter.grad.numpy()
        difference = program.weights[name] - after[name] - expected
        assert np.abs(difference).max() < 1e-4 * np.abs(expected).max() + 1e-6, name


def test_a_longer_sequence_is_no_longer_program() -> None:
    module = made(mamba)
    short, long = (imported(module, n).module for n in (LENGTH, 3 * LENGTH))
    assert len([*short.walk()]) == len([*long.walk()])
    function = modeling_mamba.mamba_selective_scan
    assert function.__module__ == modeling_mamba.__name__, "it was not put back"
