"""nanotron: its YAML configurations of LLaMA and Qwen2 models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from distir.errors import DistIRError
from distir.exports.systems.files import read_options, yaml_text
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import Document, System
from distir.exports.systems.table import OptionRule, OptionTable, Row, Values

_MODEL = "model.model_config."


def _read_kind(values: Values, known: RunSettings) -> Mapping[str, Any]:
    if values["model.model_config.is_starcoder2_config"]:
        raise DistIRError(
            "model.model_config.is_starcoder2_config: DistIR's table of nanotron has LLaMA "
            "and Qwen2"
        )
    qkv = bool(values["model.model_config.is_qwen2_config"])
    return {
        "mlp": "swiglu", "norm": "rms", "position": "rotary", "bias": False, "qkv_bias": qkv
    }  # fmt: skip


def _write_kind(settings: RunSettings) -> Mapping[str, Any]:
    kind = "is_qwen2_config" if settings.qkv_bias else "is_llama_config"
    if (settings.mlp, settings.norm, settings.position) != ("swiglu", "rms", "rotary"):
        raise DistIRError(
            "nanotron builds LLaMAs: SwiGLU, RMS norms and rotary positions"
        )
    return {_MODEL + kind: True}


def _read_sequences(values: Values, known: RunSettings) -> Mapping[str, Any]:
    mode = str(values["parallelism.tp_mode"]).upper()
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER"):
        raise DistIRError(f"parallelism.tp_mode cannot be {mode}")
    asynchronous = bool(values["parallelism.tp_linear_async_communication"])
    return {
        "sequence_parallel": mode == "REDUCE_SCATTER",
        "overlap": "tp" if asynchronous else "",
    }


def _write_sequences(settings: RunSettings) -> Mapping[str, Any]:
    mode = "REDUCE_SCATTER" if settings.sequence_parallel else "ALL_REDUCE"
    found: dict[str, Any] = {"parallelism.tp_mode": mode}
    if "tp" in settings.overlap:
        found["parallelism.tp_linear_async_communication"] = True
    return found


TABLE = OptionTable(
    (
        Row("layers", "model.model_config.num_hidden_layers", 32, always=True),
        Row("d_model", "model.model_config.hidden_size", 4096, always=True),
        Row("ffn", "model.model_config.intermediate_size", 11008, always=True),
        Row("heads", "model.model_config.num_attention_heads", 32, always=True),
        Row("kv_heads", "model.model_config.num_key_value_heads", 0, always=True),
        Row("positions", "model.model_config.max_position_embeddings", 2048, always=True),
        Row("theta", "model.model_config.rope_theta", 10000.0),
        Row("tied", "model.model_config.tie_word_embeddings", False),
        Row("vocab", "model.model_config.vocab_size", 32000, always=True),
        Row(
            "dtype", "model.dtype", "f32",
            {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}, always=True,
        ),
        Row("gradients_f32", "optimizer.accumulate_grad_in_fp32", False, always=True),
        Row("zero", "optimizer.zero_stage", 0, always=True),
        Row("p", "parallelism.pp", 1, always=True),
        Row("t", "parallelism.tp", 1, always=True),
        Row("c", "parallelism.context_parallel_size", 1),
        Row("e", "parallelism.expert_parallel_size", 1, always=True),
        Row(
            "schedule", "parallelism.pp_engine", "gpipe",
            {"1f1b": "", "afab": "gpipe", "1F1B": "1f1b"}, always=True,
        ),
        Row(
            "keep_gathered", "parallelism.tp_recompute_allgather", False,
            {True: False, False: True},
        ),
        Row(
            "checkpoint", "parallelism.recompute_layer", "none",
            {True: "whole", False: "none"},
        ),
        Row("micro_batch", "tokens.micro_batch_size", always=True),
        Row("seq", "tokens.sequence_length", always=True),
    ),
    (
        OptionRule(
            {"model.model_config.is_llama_config": None,
             "model.model_config.is_qwen2_config": None,
             "model.model_config.is_starcoder2_config": None},
            ("mlp", "norm", "position", "bias", "qkv_bias"), _read_kind, _write_kind,
        ),
        OptionRule(
            {"parallelism.tp_mode": "ALL_REDUCE",
             "parallelism.tp_linear_async_communication": None},
            ("sequence_parallel", "overlap"), _read_sequences, _write_sequences,
        ),
    ),
    (
        *("checkpoints*", "data*", "general*", "logging*", "lighteval*", "profiler*"),
        *("optimizer.*", "tokenizer*", "tokens.*", "model.init_method.*", "s3_upload*"),
        *("model.ddp_bucket_cap_mb", "model.make_vocab_size_divisible_by", "metrics*"),
        *("model.model_config.*_token_id", "model.model_config.hidden_act"),
        *("model.model_config.initializer_range", "model.model_config.pretraining_tp"),
        *("model.model_config.rms_norm_eps", "model.model_config.rope_*", "doremi*"),
        *("model.model_config.use_cache", "model.model_config._*", "experiment*"),
        "model.model_config.attention_bias",
        *("model.model_config.interleaved_rotary", "parallelism.moe_layer_recompute"),
        *("model.model_config.z_loss_*", "model.model_config.no_rope_layer"),
        *("model.model_config.sliding_window*", "model.model_config.flex_*", "parallelism.dp"),
        "tokens.batch_accumulation_per_replica",
    ),
    {"model.model_config.moe_config*": "DistIR's table of nanotron has no experts"},
    "nanotron, src/nanotron/config (parallelism_config.py, config.py, models_config.py), 0.4",
)  # fmt: skip


class Nanotron(System):
    """nanotron: its YAML configuration file."""

    name: ClassVar[str] = "nanotron"
    table: ClassVar[OptionTable] = TABLE
    suffixes: ClassVar[tuple[str, ...]] = (".yaml", ".yml")

    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        found = read_options(text, path, "yaml")
        found.values |= given
        for name, value in list(found.values.items()):
            if value is None and name in self.table.named():
                del found.values[name]
        return found

    def started(self, document: Document, settings: RunSettings) -> RunSettings:
        dp = document.values.get("parallelism.dp", 1)
        steps = document.values.get("tokens.batch_accumulation_per_replica", 1)
        model = settings.t * settings.p * settings.c
        try:
            devices = settings.devices or int(dp) * model * settings.e
            batch = settings.batch or (
                settings.micro_batch * int(steps) * (devices // model)
            )
        except ValueError as error:
            raise DistIRError(
                f"{document.place('parallelism.dp')}, or "
                f"tokens.batch_accumulation_per_replica, is not a whole number"
            ) from error
        return replace(settings, devices=devices, batch=batch)

    def settle(self, document: Document, settings: RunSettings) -> RunSettings:
        return replace(settings, schedule=settings.schedule if settings.p > 1 else "")

    def derived(self, settings: RunSettings) -> Mapping[str, Any]:
        return {
            "parallelism.dp": settings.r * settings.d,
            "tokens.batch_accumulation_per_replica": settings.k,
        }

    def check(self, settings: RunSettings) -> list[str]:
        if settings.zero > 1:
            raise DistIRError(f"nanotron has ZeRO stages 0 and 1, not {settings.zero}")
        if settings.experts:
            raise DistIRError("DistIR's table of nanotron has no experts")
        if settings.float8:
            raise DistIRError("nanotron has no products in float8 by its configuration")
        if settings.checkpoint not in ("none", "whole", "full"):
            raise DistIRError(
                f"nanotron recomputes all layers or none, not {settings.checkpoint}"
            )
        if settings.schedule not in ("", "1f1b", "gpipe"):
            raise DistIRError(f"nanotron has no pipeline schedule {settings.schedule}")
        return []

    def write(
        self, settings: RunSettings, kept: Mapping[str, Any], said: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        if settings.checkpoint == "full":
            settings = replace(settings, checkpoint="whole")
        values, remarks = super().write(settings, kept, said)
        for name, value in _NEEDED.items():
            if not any(key == name or key.startswith(f"{name}.") for key in values):
                values[name] = value
        return values, remarks

    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        return yaml_text(values)


_NEEDED: Mapping[str, Any] = {
    "general.project": "distir",
    "general.run": "plan",
    "general.seed": 42,
    "model.init_method.std": 0.02,
    "optimizer.optimizer_factory.name": "adamW",
    "optimizer.optimizer_factory.adam_beta1": 0.9,
    "optimizer.optimizer_factory.adam_beta2": 0.95,
    "optimizer.optimizer_factory.adam_eps": 1e-8,
    "optimizer.optimizer_factory.torch_adam_is_fused": True,
    "optimizer.learning_rate_scheduler.learning_rate": 3e-4,
    "optimizer.weight_decay": 0.01,
    "optimizer.clip_grad": 1.0,
    "tokenizer.tokenizer_name_or_path": "gpt2",
    "tokens.train_steps": 100,
}
"""
Options that a file for nanotron must have but a plan does not determine, with initial
values.
"""
