"""
DeepSpeed: its JSON configuration. The model comes from a Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from distir.errors import DistIRError
from distir.exports.systems.files import json_text, read_options
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import Document, System
from distir.exports.systems.table import OptionRule, OptionTable, Row, Values

CHECKPOINTING = "gradient_checkpointing"
"""
An option of the training script, not of DeepSpeed: whether layers are recomputed. Users
give it with `--set`, and it is kept in the plan.
"""


def _read_dtype(values: Values, known: RunSettings) -> Mapping[str, Any]:
    summed = values["data_types.grad_accum_dtype"] == "fp32"
    if values["bf16.enabled"] is True:
        return {"dtype": "bf16", "gradients_f32": summed}
    dtype = "f16" if values["fp16.enabled"] is True else "f32"
    return {"dtype": dtype, "gradients_f32": summed}


def _write_dtype(settings: RunSettings) -> Mapping[str, Any]:
    name = {"bf16": "bf16.enabled", "f16": "fp16.enabled"}.get(settings.dtype)
    found: dict[str, Any] = {name: True} if name else {}
    if settings.gradients_f32:
        found["data_types.grad_accum_dtype"] = "fp32"
    return found


def _read_overlap(values: Values, known: RunSettings) -> Mapping[str, Any]:
    given = values["zero_optimization.overlap_comm"]
    overlaps = known.zero == 3 if given is None else given
    return {"overlap": "dp,params" if overlaps and known.zero else ""}


def _write_overlap(settings: RunSettings) -> Mapping[str, Any]:
    if not settings.zero:
        return {}
    return {"zero_optimization.overlap_comm": bool(settings.overlap)}


def _read_groups(values: Values, known: RunSettings) -> Mapping[str, Any]:
    size = values["zero_optimization.mics_shard_size"]
    if size in (None, -1, 0):
        return {"r": 1}
    rest = known.devices // (known.t * known.p * known.c)
    if not isinstance(size, int) or rest % size:
        raise DistIRError(
            f"zero_optimization.mics_shard_size {size!r} does not divide the {rest} "
            f"data-parallel devices"
        )
    return {"r": rest // size}


def _write_groups(settings: RunSettings) -> Mapping[str, Any]:
    if settings.r == 1:
        return {}
    if settings.zero != 3:
        raise DistIRError(
            "deepspeed has groups with whole copies (MiCS) for ZeRO 3 only"
        )
    return {"zero_optimization.mics_shard_size": settings.d * settings.e}


def _read_checkpoint(values: Values, known: RunSettings) -> Mapping[str, Any]:
    on = str(values[CHECKPOINTING]).lower() in ("true", "1", "on")
    return {"checkpoint": "whole" if on else "none"}


def _write_checkpoint(settings: RunSettings) -> Mapping[str, Any]:
    return {}


TABLE = OptionTable(
    (
        Row("batch", "train_batch_size", 0, always=True),
        Row("micro_batch", "train_micro_batch_size_per_gpu", 0, always=True),
        Row("zero", "zero_optimization.stage", 0, always=True),
        Row("t", "tensor_parallel.autotp_size", 1),
        Row(
            "offload_states", "zero_optimization.offload_optimizer.device", False,
            {"cpu": True, "none": False},
        ),
    ),
    (
        OptionRule(
            {"bf16.enabled": None, "fp16.enabled": None, "data_types.grad_accum_dtype": None},
            ("dtype", "gradients_f32"), _read_dtype, _write_dtype,
        ),
        OptionRule(
            {"zero_optimization.mics_shard_size": None}, ("r",), _read_groups, _write_groups
        ),
        OptionRule(
            {"zero_optimization.overlap_comm": None}, ("overlap",),
            _read_overlap, _write_overlap,
        ),
        OptionRule({CHECKPOINTING: None}, ("checkpoint",), _read_checkpoint, _write_checkpoint),
    ),
    (
        *("optimizer.*", "optimizer", "scheduler.*", "scheduler", "gradient_clipping"),
        *("steps_per_print", "wall_clock_breakdown", "dump_state", "prescale_gradients"),
        *("gradient_accumulation_steps", "gradient_predivide_factor", "seed", "fp16.*"),
        *("bf16.*", "zero_optimization.*_bucket_size", "zero_optimization.stage3_*"),
        *("zero_optimization.contiguous_gradients", "zero_optimization.sub_group_size"),
        *("zero_optimization.reduce_scatter", "zero_optimization.allgather_partitions"),
        *("zero_optimization.round_robin_gradients", "zero_optimization.load_from_*"),
        *("zero_optimization.offload_*.pin_memory", "zero_optimization.offload_*.*buffer*"),
        *("zero_optimization.ignore_unused_parameters", "zero_optimization.memory_*"),
        *("zero_optimization.gather_16bit_*", "zero_optimization.elastic_checkpoint"),
        *("zero_optimization.cpu_offload", "zero_optimization.mics_hierarchical_*"),
        *("zero_optimization.zero_quantized_*", "zero_optimization.offload_*.*"),
        *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "aio.*"),
        *("activation_checkpointing.*", "flops_profiler.*", "comms_logger.*", "monitor*"),
        *("tensorboard.*", "wandb.*", "csv_monitor.*", "checkpoint.*", "data_types.*"),
        *("communication_data_type", "amp.*", "elasticity.*", "autotuning.*", "compile*"),
        *("sparse_gradients", "disable_allgather", "zero_optimization.allgather_*"),
        *("dataloader_drop_last", "use_node_local_storage", "tensor_parallel.*", "comment"),
        *("torch_autocast.*", "memory_breakdown", "hybrid_engine.*", "$schema", "_*", "fp32_allreduce"),
        *("zero_optimization.zenflow.*", "train_iters", "data_efficiency.*"),
    ),
    {
        "zero_optimization.zero_hpz_partition_size": "DistIR has no second copy of parameters",
        "zero_optimization.offload_param.device": "DistIR keeps parameters on the devices",
        "pipeline.*": "DeepSpeed's pipelines are in the script; use --from megatron",
        "sequence_parallel_size": "DistIR has no Ulysses attention",
        "sparse_attention.*": "DistIR builds no sparse attention",
        "compression_training.*": "DistIR builds no compressed training",
    },
    "DeepSpeed, deepspeed/runtime/config.py and deepspeed/runtime/zero/config.py, 0.19.8",
)  # fmt: skip


class DeepSpeed(System):
    """DeepSpeed: its JSON configuration file."""

    name: ClassVar[str] = "deepspeed"
    table: ClassVar[OptionTable] = TABLE
    suffixes: ClassVar[tuple[str, ...]] = (".json",)

    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        found = read_options(text, path, "json")
        found.values |= given
        named = {*self.table.named(), *self.table.of_rules()}
        for name, value in list(found.values.items()):
            if value == "auto" and name in named:
                if (
                    name == "zero_optimization.overlap_comm"
                    or name == "train_batch_size"
                ):
                    del found.values[name]
                    continue
                raise DistIRError(
                    f"{found.place(name)} is auto, which the training script decides; give "
                    f"it with --set {name}=VALUE"
                )
        if found.values.get("zero_optimization.cpu_offload") is True:
            found.values.setdefault("zero_optimization.offload_optimizer.device", "cpu")
        return found

    def started(self, document: Document, settings: RunSettings) -> RunSettings:
        steps = document.values.get("gradient_accumulation_steps", 1)
        steps = int(steps) if str(steps).isdigit() else 1
        t, batch, micro = settings.t or 1, settings.batch, settings.micro_batch
        devices = settings.devices
        if not devices and batch and micro:
            devices = batch // (micro * steps) * t
        if not micro and batch and devices:
            micro = max(batch // (devices // t * steps), 1)
        if not batch and devices:
            batch = micro * steps * (devices // t)
        return replace(
            settings, t=t, devices=devices, batch=batch, micro_batch=micro or 1
        )

    def derived(self, settings: RunSettings) -> Mapping[str, Any]:
        return {"gradient_accumulation_steps": settings.k}

    def check(self, settings: RunSettings) -> list[str]:
        for degree, what in ((settings.p, "pipelines"), (settings.c, "context parallelism"),
                             (settings.e, "expert parallelism")):  # fmt: skip
            if degree > 1:
                raise DistIRError(
                    f"deepspeed cannot have {what} of {degree} by its configuration: that "
                    f"is in the code of the training script"
                )
        if settings.float8:
            raise DistIRError("deepspeed has no products in float8")
        if settings.checkpoint not in ("none", "whole", "full"):
            raise DistIRError(
                f"deepspeed cannot recompute by {settings.checkpoint}: the model does that, "
                f"in all layers or in none"
            )
        remarks = [
            "the model is not part of DeepSpeed's file; its configuration is in the plan"
        ]
        if settings.checkpoint != "none":
            remarks.append(
                "recomputation is the model's: call model.gradient_checkpointing_enable()"
            )
        if settings.sequence_parallel and settings.t > 1:
            remarks.append("deepspeed's tensor parallelism does not split sequences")
        return remarks

    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        return json_text({n: v for n, v in values.items() if n != CHECKPOINTING})
