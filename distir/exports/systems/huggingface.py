"""
Reads and writes the sizes of a model in a Hugging Face configuration (`config.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distir.errors import DistIRError
from distir.exports.systems.settings import MODEL, RunSettings, chosen

_COMMON = {
    "layers": ("num_hidden_layers", "n_layer"),
    "d_model": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions"),
    "theta": ("rope_theta",),
    "tied": ("tie_word_embeddings",),
    "dropout": ("resid_pdrop",),
    "attention_dropout": ("attn_pdrop", "attention_dropout"),
    "experts": ("num_local_experts",),
    "top_k": ("num_experts_per_tok",),
}
"""For each setting, its possible keys in a configuration, the most common first."""

_LLAMA = dict(mlp="swiglu", norm="rms", position="rotary", bias=False, tied=False)

_KINDS: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": {**_LLAMA, "experts": 8},
    "qwen2": {**_LLAMA, "qkv_bias": True},
    "qwen3": _LLAMA,
    "gpt2": dict(mlp="gelu", norm="layer", position="learned", bias=True, tied=True),
}
"""
The settings that each `model_type` implies, from the defaults of the classes in
transformers 5.0.
"""


def read_model(path: Path) -> dict[str, Any]:
    """
    Returns the model's settings from the Hugging Face configuration in `path`. Raises
    DistIRError if the file is not a Hugging Face configuration, or if DistIR cannot
    build its kind of model.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DistIRError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DistIRError(f"{path} is not JSON: {error}") from error
    kind: Any = data.get("model_type") if isinstance(data, dict) else None
    if kind not in _KINDS:
        raise DistIRError(
            f"{path}: a model of the type {kind!r} cannot be built here; DistIR has "
            f"{', '.join(_KINDS)}"
        )
    found = dict(_KINDS[kind])
    if found.get("position") == "rotary" and isinstance(
        data.get("rope_parameters"), dict
    ):
        data = {**data["rope_parameters"], **data}
    for fact, keys in _COMMON.items():
        value = next((data[key] for key in keys if data.get(key) is not None), None)
        if value is None:
            continue
        kind_of = type(getattr(RunSettings(), fact))
        wrong = isinstance(value, bool) != (kind_of is bool)
        if wrong or not isinstance(value, (int, float)):
            raise DistIRError(f"{path}: {keys[0]} cannot be {value!r}")
        found[fact] = kind_of(value)
    return found


def model_config(settings: RunSettings) -> dict[str, Any]:
    """
    Returns a Hugging Face configuration for the model of a run. Raises DistIRError if
    no `model_type` of the table has the model's features.
    """
    sizes = chosen(settings, MODEL)
    kinds = ("mixtral",) if settings.experts else ("llama", "qwen2", "gpt2")
    for kind in kinds:
        same = {n: v for n, v in _KINDS[kind].items() if n not in ("experts", "tied")}
        if all(sizes[name] == value for name, value in same.items()):
            break
    else:
        raise DistIRError(
            "the model has no type of Hugging Face in DistIR's table: it mixes features of "
            "LLaMA and GPT-2"
        )
    found: dict[str, Any] = {"model_type": kind}
    at = 1 if kind == "gpt2" else 0
    for fact, keys in _COMMON.items():
        value = sizes[fact]
        if value or fact == "tied":
            found[keys[min(at, len(keys) - 1)]] = value
    if not settings.experts:
        found.pop("num_experts_per_tok", None)
    return found
