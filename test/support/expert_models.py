"""Tiny mixtures of experts of Hugging Face, as they come, with weights that tell experts apart."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.importer import import_torch
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass

BATCH, LENGTH, WORDS = 4, 8, 64

_SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "num_experts_per_tok": 2,
    "use_cache": False,
}


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**_SIZES, num_local_experts=4)
    return transformers.MixtralForCausalLM(config)


def qwen3_moe() -> nn.Module:
    config = transformers.Qwen3MoeConfig(
        **_SIZES, moe_intermediate_size=8, num_experts=8, head_dim=4
    )
    return transformers.Qwen3MoeForCausalLM(config)


def gpt_oss() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = transformers.GptOssConfig(
        **_SIZES,
        num_local_experts=4,
        head_dim=4,
        sliding_window=4,
        rope_parameters=rope,
    )
    return transformers.GptOssForCausalLM(config)


def deepseek_v3() -> nn.Module:
    config = transformers.DeepseekV3Config(
        **_SIZES | {"num_key_value_heads": 4},
        moe_intermediate_size=8,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=4,
    )
    return transformers.DeepseekV3ForCausalLM(config)


EXPERT_MODELS: dict[str, Callable[[], nn.Module]] = {
    f.__name__: f for f in (mixtral, qwen3_moe, gpt_oss, deepseek_v3)
}


@functools.cache
def expert_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The module, in evaluation mode, with words for it."""
    torch.manual_seed(0)
    module = EXPERT_MODELS[name]().eval()
    for parameter in module.parameters():
        # The models' own weights are so small that all experts would compute about nothing.
        std = 0.3 if parameter.dim() > 1 else 0.1
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=std)
    return module, torch.randint(0, WORDS, (BATCH, LENGTH))


@functools.cache
def imported_experts(name: str, capacity_factor: float | None = None) -> ImportedModel:
    """The program of a model's forward, with layers as functions."""
    module, words = expert_model(name)
    found = import_torch(module, (words,), capacity_factor=capacity_factor)
    for prepared in (FoldShapesPass(), OutlineRepeatsPass()):
        prepared.apply(Context(), found.module)
    return found


@functools.cache
def experts_step(name: str, capacity_factor: float | None = None) -> ModuleOp:
    """A training step of a model with SGD at a learning rate of 1: parameters less gradients."""
    step = imported_experts(name, capacity_factor).module.clone()
    DifferentiatePass(loss="cross_entropy", optimizer="sgd", learning_rate=1.0).apply(
        Context(), step
    )
    return step
