"""Hugging Face Accelerate: the YAML file of `accelerate launch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from distir.errors import DistIRError
from distir.exports.systems.files import read_options, yaml_text
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import Document, System
from distir.exports.systems.table import OptionRule, OptionTable, Row, Values

_F = "fsdp_config."
_P = "parallelism_config.parallelism_config_"
_D = "deepspeed_config."
_M = "megatron_lm_config.megatron_lm_"

_STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3,
               "1": 3, "2": 2, "3": 0, "4": 3}  # fmt: skip

_OPTIONS = {
    "distributed_type": "NO",
    _F + "fsdp_version": 1,
    _F + "fsdp_sharding_strategy": None,
    _F + "fsdp_reshard_after_forward": True,
    _F + "fsdp_offload_params": False,
    _F + "fsdp_activation_checkpointing": False,
    _P + "dp_replicate_size": 1,
    _P + "dp_shard_size": None,
    _P + "tp_size": 1,
    _P + "cp_size": 1,
    _D + "zero_stage": 2,
    _D + "offload_optimizer_device": "none",
    _D + "offload_param_device": "none",
    _M + "tp_degree": 1,
    _M + "pp_degree": 1,
    _M + "recompute_activations": False,
    _M + "sequence_parallelism": False,
    _M + "use_distributed_optimizer": False,
}

_FACTS = (
    *("zero", "t", "p", "c", "r", "checkpoint", "offload_states", "sequence_parallel"),
    "overlap",
)


def _number(values: Values, option: str) -> int:
    """
    Returns an option as an integer. Raises DistIRError if the option is not an integer.
    """
    try:
        return int(values[option])
    except (TypeError, ValueError) as error:
        raise DistIRError(
            f"{option} wants a whole number, not {values[option]!r}"
        ) from error


def _true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"


def _read(values: Values, known: RunSettings) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "zero": 0, "t": 1, "p": 1, "c": 1, "r": 1, "checkpoint": "none",
        "offload_states": False, "sequence_parallel": False, "overlap": "dp",
    }  # fmt: skip
    kind = str(values["distributed_type"]).upper()
    if kind == "DEEPSPEED":
        if values[_D + "offload_param_device"] not in ("none", None):
            raise DistIRError(
                f"{_D}offload_param_device cannot be predicted: DistIR keeps parameters on "
                f"the devices"
            )
        stage = _number(values, _D + "zero_stage")
        offload = values[_D + "offload_optimizer_device"] == "cpu"
        overlap = "dp,params" if stage == 3 else "dp"
        return {**found, "zero": stage, "offload_states": offload, "overlap": overlap}
    if kind == "MEGATRON_LM":
        zero = _true(values[_M + "use_distributed_optimizer"])
        return {
            **found,
            "t": _number(values, _M + "tp_degree"),
            "p": _number(values, _M + "pp_degree"),
            "zero": int(zero),
            "sequence_parallel": _true(values[_M + "sequence_parallelism"]),
            "checkpoint": "selective"
            if _true(values[_M + "recompute_activations"])
            else "none",
            "overlap": "",
        }
    if kind in ("NO", "MULTI_GPU"):
        t, c = (_number(values, _P + n) for n in ("tp_size", "cp_size"))
        return {**found, "t": t, "c": c}
    if kind != "FSDP":
        raise DistIRError(
            f"distributed_type cannot be {kind}; DistIR knows NO, MULTI_GPU, FSDP, "
            f"DEEPSPEED and MEGATRON_LM"
        )
    t, c, r = (
        _number(values, _P + n) for n in ("tp_size", "cp_size", "dp_replicate_size")
    )
    strategy = values[_F + "fsdp_sharding_strategy"]
    if strategy is not None and _number(values, _F + "fsdp_version") == 1:
        name = str(strategy).upper()
        if name not in _STRATEGIES:
            raise DistIRError(
                f"{_F}fsdp_sharding_strategy cannot be {strategy!r}; DistIR knows "
                f"{', '.join(list(_STRATEGIES)[:4])}"
            )
        zero = _STRATEGIES[name]
        r = known.nodes if name in ("HYBRID_SHARD", "4") else r
    else:
        zero = 3 if _true(values[_F + "fsdp_reshard_after_forward"]) else 2
    if _true(values[_F + "fsdp_offload_params"]):
        raise DistIRError(
            f"{_F}fsdp_offload_params cannot be predicted: DistIR keeps parameters on the "
            f"devices"
        )
    whole = _true(values[_F + "fsdp_activation_checkpointing"])
    return {
        **found, "t": t, "c": c, "r": r, "zero": zero, "overlap": "dp,params",
        "checkpoint": "whole" if whole else "none",
    }  # fmt: skip


def _write(settings: RunSettings) -> Mapping[str, Any]:
    if settings.p > 1 or settings.checkpoint == "selective" or settings.zero == 1:
        return _megatron(settings)
    if settings.zero == 0 and settings.checkpoint == "none":
        kind = "MULTI_GPU" if settings.devices > 1 else "NO"
        return {"distributed_type": kind, **_parallelism(settings)}
    if settings.offload_states:
        return {
            "distributed_type": "DEEPSPEED",
            _D + "zero_stage": settings.zero,
            _D + "offload_optimizer_device": "cpu",
            _D + "gradient_accumulation_steps": settings.k,
        }
    if settings.zero == 0:
        raise DistIRError(
            "accelerate recomputes layers with FSDP, not with plain replicas"
        )
    return {
        "distributed_type": "FSDP",
        _F + "fsdp_version": 2,
        _F + "fsdp_reshard_after_forward": settings.zero == 3,
        _F + "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        _F + "fsdp_activation_checkpointing": settings.checkpoint in ("whole", "full"),
        **_parallelism(settings),
    }


def _parallelism(settings: RunSettings) -> dict[str, Any]:
    if settings.t * settings.c * settings.r == 1:
        return {}
    return {
        _P + "dp_replicate_size": settings.r,
        _P + "dp_shard_size": settings.d * settings.e,
        _P + "tp_size": settings.t,
        _P + "cp_size": settings.c,
    }


def _megatron(settings: RunSettings) -> Mapping[str, Any]:
    if settings.zero > 1 or settings.c > 1 or settings.offload_states:
        raise DistIRError(
            "accelerate has pipelines, ZeRO 1 and selective recomputation by Megatron-LM "
            "only, and there neither ZeRO 2 and 3, nor context parallelism, nor offloading"
        )
    if settings.schedule not in ("", "1f1b") or settings.chunks > 1:
        raise DistIRError("accelerate has the pipeline schedule 1f1b only")
    return {
        "distributed_type": "MEGATRON_LM",
        _M + "tp_degree": settings.t,
        _M + "pp_degree": settings.p,
        _M + "num_micro_batches": settings.k,
        _M + "sequence_parallelism": settings.sequence_parallel,
        _M + "recompute_activations": settings.checkpoint == "selective",
        _M + "use_distributed_optimizer": settings.zero == 1,
    }


TABLE = OptionTable(
    (
        Row("devices", "num_processes", 1, always=True),
        Row(
            "dtype", "mixed_precision", "f32",
            {"bf16": "bf16", "fp16": "f16", "no": "f32"}, always=True,
        ),
    ),
    (OptionRule(_OPTIONS, _FACTS, _read, _write),),
    (
        *("compute_environment", "debug", "downcast_bf16", "machine_rank", "main_*"),
        *("rdzv_backend", "same_network", "tpu_*", "use_cpu", "enable_cpu_affinity"),
        *("fsdp_config.*", "deepspeed_config.*", "megatron_lm_config.*", "num_machines"),
        *("parallelism_config.*", "dynamo_config.*", "dynamo_backend", "gpu_ids"),
        *("command_file", "commands", "mpirun_*", "ipex_*", "tp_config.*", "fp8_config.*"),
        *("main_training_function", "use_megatron_lm", "use_fsdp", "use_deepspeed"),
    ),
    {},
    "accelerate, src/accelerate/commands/config and utils/dataclasses.py, 1.15.0",
)  # fmt: skip


class Accelerate(System):
    """Hugging Face Accelerate: the YAML file that `accelerate config` writes."""

    name: ClassVar[str] = "accelerate"
    table: ClassVar[OptionTable] = TABLE
    suffixes: ClassVar[tuple[str, ...]] = (".yaml", ".yml")

    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        found = read_options(text, path, "yaml")
        found.values |= given
        if "mixed_precision" in found.values:  # YAML reads no as false
            value = found.values["mixed_precision"]
            found.values["mixed_precision"] = "no" if value is False else value
        if found.values.get("distributed_type") is False:
            found.values["distributed_type"] = "NO"
        machines = found.values.get("num_machines") or 1
        devices = found.values.get("num_processes") or 1
        if not isinstance(devices, int) or not isinstance(machines, int):
            raise DistIRError(f"{found.place('num_processes')} wants a whole number")
        found.devices, found.per_node = devices, max(devices // machines, 1)
        return found

    def settle(self, document: Document, settings: RunSettings) -> RunSettings:
        if settings.batch or not settings.devices:
            return settings
        steps = document.values.get(_D + "gradient_accumulation_steps", 1)
        micro = document.values.get(_M + "num_micro_batches", 1)
        rest = settings.devices // (settings.t * settings.p * settings.c)
        count = int(steps) * int(micro) if str(steps).isdigit() else int(micro)
        return replace(settings, batch=settings.micro_batch * count * rest)

    def derived(self, settings: RunSettings) -> Mapping[str, Any]:
        return {"num_machines": settings.nodes}

    def check(self, settings: RunSettings) -> list[str]:
        if settings.e > 1:
            raise DistIRError(
                "accelerate has no expert parallelism by its configuration"
            )
        if settings.float8:
            raise DistIRError("accelerate's float8 is not in DistIR's table")
        if settings.checkpoint not in ("none", "whole", "full", "selective"):
            raise DistIRError(
                f"accelerate recomputes all layers or none, not {settings.checkpoint}"
            )
        return [
            f"the training script takes {settings.micro_batch} sequences of {settings.seq} "
            f"tokens a device, and accumulates {settings.k} times",
            "the model is not part of the file; its configuration is in the plan",
        ]

    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        return yaml_text({"compute_environment": "LOCAL_MACHINE", **values})
