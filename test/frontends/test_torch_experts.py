"""Mixtures of experts of Hugging Face, imported as they come, compute what PyTorch does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.expert_models import (
    EXPERT_MODELS,
    expert_model,
    experts_step,
    imported_experts,
)
from support.thoroughness import chosen

from distir.dialects.train_ops.experts import GroupedProductOp
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function, result_names


def close(expected: torch.Tensor, found: np.ndarray, what: str) -> None:
    """Checks that numbers differ by no more than rounding, relative to the largest."""
    wanted = expected.detach().numpy()
    largest = np.abs(wanted).max()
    assert largest > 1e-6, f"{what} is all but zero; the test is blind"
    assert np.abs(found - wanted).max() < 2e-5 * largest, what


@pytest.mark.parametrize("name", EXPERT_MODELS)
def test_forward(name: str) -> None:
    module, words = expert_model(name)
    imported = imported_experts(name)
    assert any(isinstance(op, GroupedProductOp) for op in imported.module.walk())
    given = {**imported.weights, "input_ids": words.numpy()}
    names = argument_names(entry_function(imported.module))
    (found,) = run_program(imported.module, [given[n] for n in names])
    close(module(words).logits, found, name)


@pytest.mark.parametrize("name", chosen(EXPERT_MODELS, ["gpt_oss"]))
def test_gradients(name: str) -> None:
    module, words = expert_model(name)
    labels = words.flip(1)
    module.zero_grad()
    logits = module(words).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    step, weights = experts_step(name), imported_experts(name).weights
    given = {**weights, "input_ids": words.numpy(), "labels": labels.numpy()}
    function = entry_function(step)
    arguments = [given[n] for n in argument_names(function)]
    found = dict(zip(result_names(function), run_program(step, arguments), strict=True))
    close(loss, found["loss"], "loss")
    trained = {n: p for n, p in module.named_parameters() if p.grad is not None}
    assert any("experts" in n for n in trained)
    for parameter, value in trained.items():
        assert value.grad is not None
        if float(value.grad.abs().max()) > 1e-6:
            close(value.grad, weights[parameter] - found[parameter], parameter)
