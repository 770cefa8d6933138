"""Steps of generation as modules of PyTorch: tokens equal those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.generation import (
    NEW_TOKENS,
    PROMPTS,
    SIZES,
    generated_by_transformers,
    tiny_config,
    tiny_model,
)

from distir.errors import DistIRError
from distir.frontends.torch.serving.caches import layer_windows, written
from distir.frontends.torch.serving.importer import cache_names
from distir.frontends.torch.serving.modules import Decode, Prefill


def generated(model: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """What the two modules generate for `PROMPTS`, and the shapes of the cache."""
    prefill, decode = Prefill(model, SIZES), Decode(model, SIZES)
    counts = torch.tensor([len(prompt) for prompt in PROMPTS])
    padding = SIZES.prompt - counts
    tokens = torch.tensor([[0] * (SIZES.prompt - len(p)) + p for p in PROMPTS])
    made = [list(prompt) for prompt in PROMPTS]
    with torch.no_grad():
        prefill(tokens, padding, None)
        shapes = prefill.__dict__["discovered"]
        # What is in the cache before must not matter.
        cache = {
            layer: {name: torch.full(*shape) for name, shape in filled(own).items()}
            for layer, own in shapes.items()
        }
        output = prefill(tokens, padding, cache)
        for step in range(NEW_TOKENS):
            new = output["logits"][:, -1].argmax(-1)
            for row, token in zip(made, new.tolist(), strict=True):
                row.append(token)
            if step < NEW_TOKENS - 1:
                output = decode(new[:, None], counts + step, output["cache"])
    return made, shapes


def filled(own: dict[str, Any]) -> dict[str, Any]:
    return {name: (shape, 7.0) for name, (shape, _) in own.items()}


SHAPES = {
    "llama": {"key": (4, 2, 48, 8), "value": (4, 2, 48, 8)},
    "qwen3": {"key": (4, 2, 48, 8), "value": (4, 2, 48, 8)},
    "mistral": {"key": (4, 2, 6, 8), "value": (4, 2, 6, 8)},
    "gemma3": {"key": (4, 2, 6, 8), "value": (4, 2, 6, 8)},
    "gpt2": {"key": (4, 4, 48, 8), "value": (4, 4, 48, 8)},
    "mixtral": {"key": (4, 2, 48, 8), "value": (4, 2, 48, 8)},
    "deepseek_v3": {"key": (4, 1, 48, 8), "value": (4, 1, 48, 4)},
    "mamba": {"conv": (4, 64, 4), "recurrent": (4, 64, 8)},
}
"""
The tensors of the first layer's cache: heads of keys and values, as many slots as the
window, the latents of DeepSeek, the states of Mamba.
"""


@pytest.mark.parametrize("kind", SHAPES)
def test_tokens_equal_those_of_transformers(kind: str) -> None:
    model = tiny_model(kind)
    made, shapes = generated(model)
    assert made == generated_by_transformers(model)
    assert {n: tuple(shape) for n, (shape, _) in shapes["layer0"].items()} == SHAPES[
        kind
    ]
    assert len(cache_names(shapes)) == 4


def test_a_block_wraps_around_the_slots() -> None:
    cache, new = torch.zeros(2, 1, 4, 1), torch.arange(1.0, 7).reshape(2, 1, 3, 1)
    found = written(cache, new, torch.tensor([0, 3]))
    assert found.flatten(1).tolist() == [[1, 2, 3, 0], [5, 6, 0, 4]]
    assert not cache.any()


def test_a_layer_without_a_static_cache_is_refused() -> None:
    config = tiny_config("llama")
    config.layer_types = ["full_attention", "chunked_attention"]
    config.attention_chunk_size = 4
    with pytest.raises(DistIRError, match=r"layer 1 .* 'chunked_attention'"):
        layer_windows(config)
