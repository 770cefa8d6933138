"""Tiny decoders of Hugging Face, programs and packages that generate with them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.imported_model import ImportedModel
from distir.frontends.serving import ServingSizes
from distir.frontends.torch.serving.importer import import_serving
from distir.launch.timing_rank import load_package
from distir.lowering.torch_package import write_package
from distir.tools.entry_checks import compared
from distir.transforms.precision.weight_quantization import QuantizedWeight
from support.ranks import run_ranks

PROMPTS = [[5, 17, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9], [44], [90, 80, 70, 60, 50]]
"""Prompts of different lengths."""

SIZES = ServingSizes(batch=4, cache=48, prompt=10)
NEW_TOKENS = 32

_COMMON: Mapping[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

_LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
}

_CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON),
    "qwen3": ("Qwen3Config", {**_COMMON, "head_dim": 8}),
    "mistral": ("MistralConfig", {**_COMMON, "sliding_window": 6}),
    "mixtral": (
        "MixtralConfig",
        {**_COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            **_COMMON,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": 96,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    "gemma3": ("Gemma3TextConfig", {**_COMMON, "head_dim": 8, "sliding_window": 6}),
    "deepseek_v3": ("DeepseekV3Config", {**_COMMON, **_LATENT}),
    "t5": (
        "T5Config",
        {
            "vocab_size": 96,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "decoder_start_token_id": 0,
            "eos_token_id": None,
            "pad_token_id": 0,
        },
    ),
    "mamba": (
        "MambaConfig",
        {
            "vocab_size": 96,
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        },
    ),
}


def tiny_config(kind: str, **changes: Any) -> Any:
    """
    Returns the configuration of a tiny decoder with two layers; `changes` replace its
    settings.
    """
    name, settings = _CONFIGS[kind]
    return getattr(transformers, name)(**{**settings, **changes})


def tiny_model(kind: str, **changes: Any) -> Any:
    """
    Returns a tiny decoder whose weights are large enough for tokens to vary. `changes`
    are those of `tiny_config`.
    """
    torch.manual_seed(0)
    config = tiny_config(kind, **changes)
    maker: Any = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        maker = transformers.AutoModelForSeq2SeqLM
    model: Any = maker.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def generated_by_transformers(
    model: Any, prompts: Sequence[list[int]] = PROMPTS, new: int = NEW_TOKENS
) -> list[list[int]]:
    """
    Returns each prompt with the new tokens that transformers generates for it; of an
    encoder-decoder, the start token and the new ones.
    """
    return [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=new,
            do_sample=False,
        )[0].tolist()
        for prompt in prompts
    ]


def imported(model: Any, sizes: ServingSizes = SIZES, **options: Any) -> ImportedModel:
    """Returns a model's program with the entries prefill and decode."""
    from distir.frontends.imported_model import joined_models
    from distir.passes.raise_patterns import RaisePatternsPass
    from distir.tools.files import apply_passes, named_pass

    entries = import_serving(model, sizes, **options)
    for entry in entries.values():
        apply_passes(
            entry.module,
            named_pass("fold-shapes"),
            RaisePatternsPass(),
            named_pass("outline-repeats"),
        )
    return joined_models(entries)


def quantized_program(
    model: Any,
    format: str | None,
    group: int = 8,
    *,
    cache: str | None = None,
    sizes: ServingSizes = SIZES,
) -> tuple[ImportedModel, dict[str, QuantizedWeight]]:
    """
    Returns a model's program with the entries prefill and decode, weights in `format` and
    caches of `sizes` in the format `cache`, and how each parameter was quantised, by name.
    """
    from distir.frontends.imported_model import joined_models
    from distir.passes.raise_patterns import RaisePatternsPass
    from distir.tools.files import apply_passes, named_pass
    from distir.transforms.precision.cache_quantization import quantize_caches
    from distir.transforms.precision.weight_quantization import (
        QuantizedWeights,
        quantize_weights,
    )

    found: dict[str, QuantizedWeight] = {}
    entries = import_serving(model, sizes, check=False)
    for entry in entries.values():
        apply_passes(entry.module, named_pass("fold-shapes"), RaisePatternsPass())
        if format is not None:
            own = quantize_weights(entry.module, format, group)
            entry.weights = QuantizedWeights(entry.weights, own)
            found |= own
        if cache is not None:
            quantize_caches(entry.module, cache)
        apply_passes(entry.module, named_pass("outline-repeats"))
    return joined_models(entries), found


def distributed(module: ModuleOp, **options: Any) -> ModuleOp:
    """Returns a copy of a program that is distributed with the options of `distribute`."""
    from distir.hardware import load_cluster
    from distir.passes.distribute import DistributePass
    from distir.planning.distribution.options import DistributionOptions
    from distir.planning.plans.programs import replace_cluster
    from distir.tools.files import apply_passes

    copy, cluster = module.clone(), load_cluster("dgx-a100", None)
    replace_cluster(copy, cluster)
    given = DistributionOptions(cluster=cluster.sym_name.data, **options)
    apply_passes(copy, DistributePass.of(given))
    return copy


def generated(
    folder: Path,
    weights: Mapping[str, Any],
    processes: int,
    prompts: Sequence[list[int]] = PROMPTS,
    new: int = NEW_TOKENS,
    *,
    in_place: bool = True,
) -> list[list[int]]:
    """
    Returns each prompt with the new tokens that the package in `folder` generates on gloo
    processes. Fails unless all processes agree and, `in_place`, keys and values stay in
    their memory.
    """
    arrays = {name: _tensor(array) for name, array in weights.items()}
    found = run_ranks(processes, _generated, str(folder), arrays, list(prompts), new)
    tokens, places = zip(*found, strict=True)
    assert all(each == tokens[0] for each in tokens)
    assert not in_place or all(before == after for before, after in places)
    return tokens[0]


@functools.cache
def known(kind: str, new: int) -> tuple[list[list[int]], ImportedModel]:
    """The tokens that transformers generates, and the program."""
    model = tiny_model(kind)
    wanted = generated_by_transformers(model, new=new)
    return wanted, imported(model, check=False)


def assert_generates(
    wanted: list[list[int]],
    program: ImportedModel,
    plan: Mapping[str, Any],
    folder: Path,
    new: int,
    *,
    in_place: bool = True,
) -> None:
    """
    Fails unless the distributed program is equal to the given one, also decode after
    prefill, and its package, written below `folder`, generates the tokens `wanted`.
    """
    module = distributed(program.module, **plan)
    modules, names = (program.module, module), ("model", "distributed")
    found = compared(modules, names, program.weights, {}, 0, None)
    assert [each.name for each in found][-1] == "decode after prefill"
    assert all(each.within for each in found)
    package = write_package(module, folder)
    degrees = (n for axis, n in plan.items() if axis != "k" and isinstance(n, int))
    made = generated(
        package, program.weights, prod(degrees), new=new, in_place=in_place
    )
    assert made == wanted


def _tensor(array: Any) -> torch.Tensor:
    array = np.asarray(array)
    if array.dtype.name == "float8_e4m3fn":  # no type of NumPy's own
        return torch.tensor(array.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.tensor(array)


def _generated(
    folder: str, weights: Any, prompts: list[list[int]], new: int
) -> tuple[list[list[int]], tuple[Any, Any]]:
    program, runtime, _ = load_package(folder, "generating")
    prefill = importlib.import_module("generating.prefill_program")
    generation = importlib.import_module("generating.generation")
    programs = generation.EntryPrograms(prefill, program)
    generation.check(prompts, new, programs)
    rank, device = dist.get_rank(), torch.device("cpu")
    with torch.inference_mode():
        body = runtime.body_of(program, rank, device)
        generator = generation.Generator(programs, (rank, device, body), [weights])
        caches = [s.name for s in program.ARGUMENTS if s.role == "cache"]

        def places() -> dict[str, int]:
            return {
                n: generator.held[n].data_ptr() for n in caches if n in generator.held
            }

        before = places()
        return generator.generate(prompts, new), (before, places())
