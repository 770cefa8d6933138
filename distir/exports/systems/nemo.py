"""NeMo's configurations of Megatron models (`megatron_gpt_config.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from distir.errors import DistIRError
from distir.exports.systems import megatron_rules as rules
from distir.exports.systems.files import read_options, yaml_text
from distir.exports.systems.megatron import REFUSED, RULES
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import Document, System
from distir.exports.systems.table import OptionRule, OptionTable, Row

_M = "model."

ROWS = (
    Row("t", "model.tensor_model_parallel_size", 1, always=True),
    Row("p", "model.pipeline_model_parallel_size", 1, always=True),
    Row("c", "model.context_parallel_size", 1),
    Row("e", "model.expert_model_parallel_size", 1),
    Row("sequence_parallel", "model.sequence_parallel", False),
    Row("layers", "model.num_layers", always=True),
    Row("d_model", "model.hidden_size", always=True),
    Row("ffn", "model.ffn_hidden_size", 0),
    Row("heads", "model.num_attention_heads", always=True),
    Row("kv_heads", "model.num_query_groups", 0),
    Row("head_dim", "model.kv_channels", 0),
    Row("seq", "model.encoder_seq_length", always=True),
    Row("positions", "model.max_position_embeddings", 0, always=True),
    Row(
        "mlp", "model.activation", "gelu",
        {"gelu": "gelu", "swiglu": "swiglu", "fast-swiglu": "swiglu"},
    ),
    Row(
        "norm", "model.normalization", "layer",
        {"layernorm": "layer", "rmsnorm": "rms", "layernorm1p": "layer",
         "low_precision_layernorm": "layer"},
    ),
    Row(
        "position", "model.position_embedding_type", "learned",
        {"learned_absolute": "learned", "rope": "rotary"},
    ),
    Row("theta", "model.rotary_base", 10000.0),
    Row("tied", "model.share_embeddings_and_output_weights", True),
    Row("bias", "model.bias", True),
    Row("qkv_bias", "model.qkv_bias", False),
    Row("dropout", "model.hidden_dropout", 0.1),
    Row("attention_dropout", "model.attention_dropout", 0.1),
    Row("experts", "model.num_moe_experts", 0),
    Row("top_k", "model.moe_router_topk", 2),
    Row("micro_batch", "model.micro_batch_size", always=True),
    Row("batch", "model.global_batch_size", always=True),
    Row("devices", "trainer.devices", always=True),
)  # fmt: skip
"""
The options of NeMo. `trainer.devices` counts the devices of one node in a file; `parse`
replaces it by the number of devices of the run.
"""


def _renamed(rule: OptionRule, names: Mapping[str, str]) -> OptionRule:
    """
    Returns a rule of Megatron with NeMo's option names. `names` maps Megatron's names
    to NeMo's names.
    """

    def read(values: Any, known: RunSettings) -> Mapping[str, Any]:
        theirs = {old: values.get(new) for old, new in names.items()}
        return rule.read({**rule.options, **_given(theirs)}, known)

    def write(settings: RunSettings) -> Mapping[str, Any]:
        return {names[n]: v for n, v in rule.write(settings).items() if n in names}

    options = {new: rule.options.get(old) for old, new in names.items()}
    return OptionRule(options, rule.facts, read, write)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


_BY_FACT = {rule.facts[0]: rule for rule in RULES if rule.facts}


def _read_dtype(values: Any, known: RunSettings) -> Mapping[str, Any]:
    text = str(values["trainer.precision"]).lower()
    kinds = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "f16", "16-mixed": "f16",
             "32": "f32", "32-true": "f32"}  # fmt: skip
    if text not in kinds:
        raise DistIRError(
            f"trainer.precision cannot be {text!r}; DistIR knows {', '.join(kinds)}"
        )
    return {"dtype": kinds[text], "gradients_f32": kinds[text] == "bf16"}


def _write_dtype(settings: RunSettings) -> Mapping[str, Any]:
    kinds = {"bf16": "bf16-mixed", "f16": "16-mixed", "f32": 32}
    return {"trainer.precision": kinds[settings.dtype]}


_DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")


def _read_zero(values: Any, known: RunSettings) -> Mapping[str, Any]:
    return {"zero": int(values["model.optim.name"] in _DISTRIBUTED)}


def _write_zero(settings: RunSettings) -> Mapping[str, Any]:
    if settings.zero > 1:
        raise DistIRError(f"nemo has ZeRO stage 1 here, not {settings.zero}")
    name = _DISTRIBUTED[0] if settings.zero else "fused_adam"
    return {"model.optim.name": name}


def _read_vocabulary(values: Any, known: RunSettings) -> Mapping[str, Any]:
    given = values["model.override_vocab_size"] or values["model.tokenizer.vocab_size"]
    kind = values["model.tokenizer.type"]
    return rules.read_vocabulary(
        {"vocab-size": given, "padded-vocab-size": None, "tokenizer-type": kind}, known
    )


def _write_vocabulary(settings: RunSettings) -> Mapping[str, Any]:
    return {"model.override_vocab_size": settings.vocab}


TABLE = OptionTable(
    ROWS,
    (
        OptionRule(
            {"model.tokenizer.vocab_size": None, "model.override_vocab_size": None,
             "model.tokenizer.type": None},
            ("vocab",), _read_vocabulary, _write_vocabulary,
        ),
        OptionRule({"trainer.precision": 32}, ("dtype", "gradients_f32"), _read_dtype, _write_dtype),
        OptionRule({"model.optim.name": "fused_adam"}, ("zero",), _read_zero, _write_zero),
        _renamed(
            _BY_FACT["overlap"],
            {"overlap-grad-reduce": "model.optim.overlap_grad_sync",
             "overlap-param-gather": "model.optim.overlap_param_sync",
             "tp-comm-overlap": "model.ub_tp_comm_overlap"},
        ),
        _renamed(
            _BY_FACT["schedule"],
            {"num-virtual-stages-per-pipeline-rank":
             "model.virtual_pipeline_model_parallel_size",
             "num-layers-per-virtual-pipeline-stage": "model.layers_per_virtual_stage"},
        ),
        _renamed(
            _BY_FACT["checkpoint"],
            {"recompute-granularity": "model.activations_checkpoint_granularity",
             "recompute-method": "model.activations_checkpoint_method",
             "recompute-num-layers": "model.activations_checkpoint_num_layers"},
        ),
    ),
    (
        *("name", "restore_from_path", "trainer.*", "exp_manager.*", "run.*", "cluster*"),
        *("model.data.*", "model.tokenizer.*", "model.optim.*", "model.nsys_profile.*"),
        *("model.init_method_std", "model.layernorm_epsilon", "model.seed", "model.*fusion"),
        *("model.make_vocab_size_divisible_by", "model.pre_process", "model.post_process"),
        *("model.persist_layer_norm", "model.native_amp_*", "model.hysteresis"),
        *("model.fp32_residual_connection", "model.fp16_lm_*", "model.megatron_amp_O2"),
        *("model.grad_*", "model.use_cpu_*", "model.onnx_safe", "model.apex_*", "model.mcore_gpt"),
        *("model.gradient_*", "model.resume_from_checkpoint", "model.rampup_batch_size"),
        *("model.apply_query_*", "model.use_scaled_init_method", "model.headscale"),
        *("model.transformer_block_type", "model.openai_gelu", "model.normalize_*"),
        *("model.rotary_*", "model.seq_len_interpolation_factor", "model.attention_type"),
        *("model.num_micro_batches_with_*", "model.activations_checkpoint_layers_*"),
        *("model.transformer_engine", "model.fp8*", "model.reduce_amax", "model.use_*"),
        *("model.precision", "model.sync_batch_comm", "model.ub_*", "model.overlap_p2p_comm"),
        *("model.batch_p2p_comm", "model.gc_interval", "model.do_layer_norm_weight_decay"),
        *("model.*dropout", "model.get_attention_mask_*", "model.name", "model.mixed_*"),
        *("model.attention_softmax_*", "model.masked_softmax_*", "model.bias_*", "target"),
        *("model.pipeline_model_parallel_split_rank", "model.nccl_*", "model.sharp"),
        *("model.cpu_offloading_*", "model.enable_*", "model.defer_*", "model.wgrad_*"),
        *("model.dist_ckpt_*", "model.async_*", "model.moe_*", "model.apply_rope_fusion"),
        *("model.virtual_pipeline_*", "model.safe", "model.restore_*", "model.fsdp*"),
        *("model.variable_seq_*", "model.tensorboard_*", "model.deterministic_*"),
    ),
    {_M + name.replace("-", "_"): why for name, why in REFUSED.items()}
    | {"model.fp8": "float8 of NeMo is not in DistIR's table", "model.fsdp": "use --to megatron"},
    "NeMo, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml, release 2.0",
)  # fmt: skip


class Nemo(System):
    """NeMo: its YAML configuration file."""

    name: ClassVar[str] = "nemo"
    table: ClassVar[OptionTable] = TABLE
    suffixes: ClassVar[tuple[str, ...]] = (".yaml", ".yml")

    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        found = read_options(text, path, "yaml")
        found.values |= given
        for name in found.values:
            found.values[name] = _interpolated(name, found, 0)
        for name, value in list(found.values.items()):
            if value is None or value == []:
                del found.values[name]
        per_node = found.values.get("trainer.devices", 0)
        nodes = found.values.get("trainer.num_nodes", 1)
        for name, value in (
            ("trainer.devices", per_node),
            ("trainer.num_nodes", nodes),
        ):
            if not isinstance(value, int) or isinstance(value, bool):
                raise DistIRError(
                    f"{found.place(name)} wants a whole number, not {value!r}"
                )
        found.per_node, found.devices = per_node, per_node * nodes
        found.values["trainer.devices"] = found.devices
        found.values.pop("trainer.num_nodes", None)
        return found

    def vocabulary(self, settings: RunSettings) -> int:
        return rules.padded_vocabulary(settings)

    def started(self, document: Document, settings: RunSettings) -> RunSettings:
        seq = settings.seq or document.values.get("model.data.seq_length", 0)
        return replace(settings, seq=seq)

    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        nodes = {
            "trainer.devices": settings.per_node,
            "trainer.num_nodes": settings.nodes,
        }
        return yaml_text({**values, **nodes})


def _interpolated(name: str, document: Document, depth: int) -> Any:
    """
    Returns the value of the option `name`, with references to other options, such as
    `${.seq}`, replaced by their values. References that cannot be resolved stay.
    """
    value = document.values[name]
    if not isinstance(value, str) or "${" not in value or depth > 8:
        return value

    def of(match: re.Match[str]) -> str:
        path = match[1]
        if path.startswith("."):
            path = f"{name.rpartition('.')[0]}{path}"
        if path not in document.values:
            return match[0]
        return str(_interpolated(path, document, depth + 1))

    text = re.sub(r"\$\{([\w.]+)\}", of, value)
    product = re.fullmatch(r"\$\{multiply:\s*(\d+),\s*(\d+)\}", text)
    if product:
        return int(product[1]) * int(product[2])
    return int(text) if text.isdigit() else text
