"""Mixtures of experts of Hugging Face, imported as they come, compute what PyTorch does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from support.expert_models import (
    EXPERT_MODELS,
    expert_model,
    experts_step,
    imported_experts,
)
from support.thoroughness import chosen

from distir.dialects.train_ops.experts import ExpertPlacesOp, GroupedProductOp
from distir.frontends.torch.importer import import_torch
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function, result_names
from distir.transforms.expert_shards import deal_out_experts


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
    for op in imported.module.walk():
        if isinstance(op, ExpertPlacesOp):
            assert op.capacity.value.data == 1, "a TopK chooses no expert twice"
    given = {**imported.weights, "input_ids": words.numpy()}
    names = argument_names(entry_function(imported.module))
    (found,) = run_program(imported.module, [given[n] for n in names])
    close(module(words).logits, found, name)


def test_a_token_may_choose_an_expert_twice() -> None:
    """
    As it does by a table of experts by words, the entries of which are still alike; with all
    experts on one device, and on four.
    """
    config = transformers.DeepseekV4Config(
        vocab_size=64,
        hidden_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        head_dim=4,
        layer_types=["sliding_attention"],
        mlp_layer_types=["hash_moe"],
        n_routed_experts=4,
        num_experts_per_tok=2,
        q_lora_rank=8,
        partial_rotary_factor=1.0,
        o_groups=2,
        o_lora_rank=8,
        use_cache=False,
    )
    torch.manual_seed(0)
    module = transformers.DeepseekV4ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    words = torch.randint(0, 64, (2, 8))
    imported = import_torch(module, (), {"input_ids": words})
    (places,) = (o for o in imported.module.walk() if isinstance(o, ExpertPlacesOp))
    assert places.capacity.value.data == 2, "choices of no TopK"
    given = {**imported.weights, "input_ids": words.numpy()}
    names = argument_names(entry_function(imported.module))
    for shards in (1, 4):
        program = imported.module.clone()
        deal_out_experts(program, shards)
        (found,) = run_program(program, [given[n] for n in names])
        close(module(words).logits, found, f"logits on {shards}")


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
