"""
torchtitan: its options and models. The module `torchtitan_python` reads and writes
torchtitan's Python files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from distir.errors import DistIRError, did_you_mean
from distir.exports.systems.files import read_options, toml_text
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import Document, System
from distir.exports.systems.table import OptionRule, OptionTable, Row, Values
from distir.exports.systems.torchtitan_python import MOVED, python_options, python_text
from distir.transforms.memory.checkpoint_policies import LayerPolicies

_P = "parallelism."
_T = "training."

_LLAMA = dict(mlp="swiglu", norm="rms", position="rotary", bias=False, tied=False)

FLAVORS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("llama3", name): dict(
        layers=layers, d_model=width, heads=heads, kv_heads=8, ffn=ffn, vocab=vocab,
        theta=500000.0, **{**_LLAMA, "tied": tied},
    )
    for name, layers, width, heads, ffn, vocab, tied in (
        ("debugmodel", 6, 256, 16, 768, 2048, False),
        ("1B", 16, 2048, 32, 8192, 128256, True),
        ("3B", 28, 3072, 24, 8192, 128256, True),
        ("8B", 32, 4096, 32, 14336, 128256, False),
        ("70B", 80, 8192, 64, 28672, 128256, False),
        ("405B", 126, 16384, 128, 53248, 128256, False),
    )
} | {
    ("qwen3", name): dict(
        layers=layers, d_model=width, heads=heads, kv_heads=8, head_dim=128, ffn=ffn,
        vocab=151936, theta=1000000.0, **{**_LLAMA, "tied": tied},
    )
    for name, layers, width, heads, ffn, tied in (
        ("0.6B", 28, 1024, 16, 3072, True),
        ("1.7B", 28, 2048, 16, 6144, True),
        ("4B", 36, 2560, 32, 9728, True),
        ("8B", 36, 4096, 32, 12288, False),
        ("14B", 40, 5120, 40, 17408, False),
        ("32B", 64, 5120, 64, 25600, False),
    )
}  # fmt: skip
"""
The sizes of torchtitan's dense models by name and flavor, from
torchtitan/models/*/__init__.py, 0.3.0. Here, `debugmodel` of llama3 has 8 key-value
heads (grouped queries).
"""

_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved-1f1b",
    "interleavedzerobubble": "interleaved-zero-bubble",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipev",
}

_NAMES = {
    "": "1F1B",
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved-1f1b": "Interleaved1F1B",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}

_BFLOAT = {"bfloat16": "bf16", "float32": "f32", "float16": "f16"}

_OLD = (_T, "experimental.")
"""The sections in which earlier versions had the options of parallelism."""


def _read_model(values: Values, known: RunSettings) -> Mapping[str, Any]:
    name, flavor = str(values["model.name"]), str(values["model.flavor"])
    found = FLAVORS.get((name, flavor))
    if found is None:
        flavors = [f for n, f in FLAVORS if n == name]
        if not flavors:
            names = ", ".join(sorted({n for n, _ in FLAVORS}))
            raise DistIRError(
                f"model.name {name!r} cannot be built; DistIR has {names}"
            )
        raise DistIRError(
            f"model.flavor {flavor!r} of {name} is not known; "
            f"{did_you_mean(flavor, flavors)}choose from {', '.join(flavors)}"
        )
    return found


def _write_model(settings: RunSettings) -> Mapping[str, Any]:
    for (name, flavor), sizes in FLAVORS.items():
        if all(getattr(settings, n) == size for n, size in sizes.items()):
            return {"model.name": name, "model.flavor": flavor}
    raise DistIRError(
        f"torchtitan has no flavor with {settings.layers} layers of width "
        f"{settings.d_model}, {settings.heads} and {settings.kv_heads} heads, MLPs of "
        f"{settings.ffn} and {settings.vocab} words among those in DistIR's table; its "
        f"models are LLaMA 3 and Qwen 3 of published sizes"
    )


def _rest(known: RunSettings) -> int:
    return known.devices // (known.t * known.p * known.c)


def _read_shards(values: Values, known: RunSettings) -> Mapping[str, Any]:
    rest = _rest(known)
    r, shard = (
        values[_P + "data_parallel_replicate_degree"],
        values[_P + "data_parallel_shard_degree"],
    )
    if not isinstance(r, int) or not isinstance(shard, int) or r < 1 or rest % r:
        raise DistIRError(
            f"data_parallel_replicate_degree {r!r} does not divide the {rest} "
            f"data-parallel devices"
        )
    shard = rest // r if shard == -1 else shard
    if shard * r != rest:
        raise DistIRError(
            f"data_parallel_replicate_degree {r} x data_parallel_shard_degree {shard} are "
            f"not the {rest} data-parallel devices of {known.devices}; say how many devices "
            f"the run has with --devices"
        )
    if shard * known.c == 1:
        return {"zero": 0, "r": 1}
    policy = values[_P + "fsdp_reshard_after_forward"]
    if policy not in ("default", "always", "never"):
        raise DistIRError(f"fsdp_reshard_after_forward cannot be {policy!r}")
    keeps = policy == "never" or (policy == "default" and known.p > 1)
    return {"zero": 2 if keeps else 3, "r": r}


def _write_shards(settings: RunSettings) -> Mapping[str, Any]:
    each = settings.d * settings.e
    if settings.zero == 0:
        return {
            _P + "data_parallel_replicate_degree": settings.r * each,
            _P + "data_parallel_shard_degree": 1,
        }
    if settings.zero == 1:
        raise DistIRError(
            "torchtitan has no ZeRO 1: its parameters are split (ZeRO 2 and 3) or copied"
        )
    default = 2 if settings.p > 1 else 3
    policy = {2: "never", 3: "always"}[settings.zero]
    more = (
        {} if settings.zero == default else {_P + "fsdp_reshard_after_forward": policy}
    )
    return {
        _P + "data_parallel_replicate_degree": settings.r,
        _P + "data_parallel_shard_degree": each,
        **more,
    }


def _read_batch(values: Values, known: RunSettings) -> Mapping[str, Any]:
    local, batch = values[_T + "local_batch_size"], values[_T + "global_batch_size"]
    if not isinstance(local, int) or local < 1:
        raise DistIRError(f"local_batch_size wants a whole number, not {local!r}")
    parts = _rest(known)
    micro = local
    if known.p > 1:
        micro = values[_P + "pipeline_parallel_microbatch_size"]
        count = values["experimental.pipeline_parallel_microbatches"]
        if count:
            micro = max(local // count, 1)
    return {
        "micro_batch": micro,
        "batch": local * parts if batch in (-1, None) else batch,
    }


def _write_batch(settings: RunSettings) -> Mapping[str, Any]:
    if settings.p == 1:
        return {
            _T + "local_batch_size": settings.micro_batch,
            _T + "global_batch_size": settings.batch,
        }
    return {
        _T + "local_batch_size": settings.micro_batch * settings.k,
        _T + "global_batch_size": settings.batch,
        _P + "pipeline_parallel_microbatch_size": settings.micro_batch,
    }


def _read_schedule(values: Values, known: RunSettings) -> Mapping[str, Any]:
    if known.p == 1:
        return {"schedule": "", "chunks": 0}
    name = str(values[_P + "pipeline_parallel_schedule"])
    schedule = _SCHEDULES.get(name.lower())
    if schedule is None:
        raise DistIRError(
            f"pipeline_parallel_schedule {name} cannot be predicted; DistIR has "
            f"{', '.join(sorted(set(_NAMES.values())))}"
        )
    each = values[_P + "pipeline_parallel_layers_per_stage"]
    chunks = 0
    if each and "interleaved" in schedule:
        chunks = max(round(known.layers / each / known.p), 2)
    return {"schedule": schedule, "chunks": chunks}


def _write_schedule(settings: RunSettings) -> Mapping[str, Any]:
    if settings.p == 1:
        return {}
    if settings.schedule not in _NAMES:
        raise DistIRError(f"torchtitan has no pipeline schedule {settings.schedule}")
    found: dict[str, Any] = {
        _P + "pipeline_parallel_schedule": _NAMES[settings.schedule]
    }
    if settings.chunks > 2:
        layers = settings.layers // (settings.p * settings.chunks)
        found[_P + "pipeline_parallel_layers_per_stage"] = layers
    return found


def _read_recompute(values: Values, known: RunSettings) -> Mapping[str, Any]:
    mode = str(values["activation_checkpoint.mode"])
    option = str(values["activation_checkpoint.selective_ac_option"])
    if mode == "none":
        return {"checkpoint": "none"}
    if mode == "full":
        return {"checkpoint": "whole"}
    if mode != "selective":
        raise DistIRError(
            f"activation_checkpoint.mode {mode} cannot be predicted; DistIR knows none, "
            f"full and selective"
        )
    if option == "op":
        return {"checkpoint": "products"}
    if not option.isdigit() or option == "0":
        raise DistIRError(
            f"activation_checkpoint.selective_ac_option cannot be {option!r}; choose op, or "
            f"every how many layers to recompute"
        )
    return {"checkpoint": "whole" if option == "1" else f"whole:1/{option}"}


def _write_recompute(settings: RunSettings) -> Mapping[str, Any]:
    policies = LayerPolicies.of(settings.checkpoint, "torchtitan")
    policy = policies.policy
    if policy == "none":
        return {"activation_checkpoint.mode": "none"}
    if policy == "products" and policies.is_one:
        return {
            "activation_checkpoint.mode": "selective",
            "activation_checkpoint.selective_ac_option": "op",
        }
    if policy in ("full", "whole") and policies.others == "none":
        if policies.is_one:
            return {"activation_checkpoint.mode": "full"}
        part = policies.parts[0]
        if len(policies.parts) == 1 and part.numerator == 1:
            return {
                "activation_checkpoint.mode": "selective",
                "activation_checkpoint.selective_ac_option": str(part.denominator),
            }
    raise DistIRError(
        f"torchtitan cannot recompute by {settings.checkpoint}; it has nothing, all layers, "
        f"every n-th layer, and the results of all but products and attention (op)"
    )


def _read_dtype(values: Values, known: RunSettings) -> Mapping[str, Any]:
    stored, used = (str(values[_T + n]) for n in ("dtype", "mixed_precision_param"))
    if stored not in _BFLOAT or used not in _BFLOAT:
        raise DistIRError(
            f"dtype {stored} and mixed_precision_param {used} are not known"
        )
    if _BFLOAT[stored] != "f32":
        return {"dtype": _BFLOAT[stored], "master": False}
    return {"dtype": _BFLOAT[used], "master": True}


def _write_dtype(settings: RunSettings) -> Mapping[str, Any]:
    names = {dtype: name for name, dtype in _BFLOAT.items()}
    found: dict[str, Any] = {}
    if settings.dtype != "bf16":
        found[_T + "mixed_precision_param"] = names[settings.dtype]
    if not settings.master:
        found[_T + "dtype"] = names[settings.dtype]
    return found


_MX = ("quantize.linear.mx", "mx")
"""The names of torchtitan's converter to MXFP8, the newest first."""
_MX_RECIPE = "quantize.linear.mx.recipe_name"
_MX_RECIPES = ("mxfp8_cublas", "mxfp8_cublas_rceil")
"""
The recipes of the converter, the default first. The second rounds scales up, as DistIR
does.
"""


def _read_float8(values: Values, known: RunSettings) -> Mapping[str, Any]:
    converters = values["model.converters"] or values["model.handlers"] or ""
    names = converters.split(",") if isinstance(converters, str) else converters
    if values["float8.enable_float8_linear"] is True:
        names = ["float8"]
    if not any("float8" in str(name) for name in names):
        if all(name in _MX for name in names) and names:
            recipe = values[_MX_RECIPE] or _MX_RECIPES[0]
            if recipe not in _MX_RECIPES:
                raise DistIRError(f"{_MX_RECIPE} {recipe} cannot be predicted")
            return {"float8": "mxfp8"}
        if any("mx" in str(name) or "fp4" in str(name) for name in names):
            raise DistIRError(f"model.converters {converters} cannot be predicted")
        return {"float8": ""}
    recipe = (
        values["float8.recipe_name"] or values["quantize.linear.float8.recipe_name"]
    )
    known_recipes = {None: "tensor", "tensorwise": "tensor", "rowwise": "row",
                     "rowwise_with_gw_hp": "row-gw-hp"}  # fmt: skip
    if recipe not in known_recipes:
        raise DistIRError(f"float8.recipe_name {recipe} cannot be predicted")
    return {"float8": known_recipes[recipe]}


def _write_float8(settings: RunSettings) -> Mapping[str, Any]:
    if not settings.float8:
        return {}
    if settings.float8 == "mxfp8":
        return {"model.converters": [_MX[0]], _MX_RECIPE: _MX_RECIPES[-1]}
    if settings.float8 == "nvfp4":
        raise DistIRError("torchtitan trains with no products in 4-bit floats")
    recipes = {
        "tensor": "tensorwise",
        "row": "rowwise",
        "row-gw-hp": "rowwise_with_gw_hp",
    }
    return {
        "model.converters": ["quantize.linear.float8"],
        "quantize.linear.float8.recipe_name": recipes[settings.float8],
    }


def _read_overlap(values: Values, known: RunSettings) -> Mapping[str, Any]:
    new, old = (
        "compile.enable_async_tensor_parallel",
        _P + "enable_async_tensor_parallel",
    )
    tensor = ",tp" if known.t > 1 and (values[new] or values[old]) else ""
    return {"overlap": f"dp,params{tensor}" if known.zero else f"dp{tensor}"}


def _write_overlap(settings: RunSettings) -> Mapping[str, Any]:
    if settings.t > 1 and "tp" in settings.overlap:
        return {_P + "enable_async_tensor_parallel": True, "compile.enable": True}
    return {}


def _aliases(key: str) -> tuple[str, ...]:
    return tuple(section + key for section in _OLD)


TABLE = OptionTable(
    (
        Row("seq", _T + "seq_len", 2048, always=True),
        Row("t", _P + "tensor_parallel_degree", 1, aliases=_aliases("tensor_parallel_degree"), always=True),
        Row("p", _P + "pipeline_parallel_degree", 1, aliases=_aliases("pipeline_parallel_degree"), always=True),
        Row("c", _P + "context_parallel_degree", 1, aliases=_aliases("context_parallel_degree"), always=True),
        Row("e", _P + "expert_parallel_degree", 1),
        Row(
            "context", _P + "context_parallel_rotate_method", "gather",
            {"allgather": "gather", "alltoall": "ring"},
            aliases=_aliases("context_parallel_rotate_method"),
        ),
        Row("sequence_parallel", _P + "enable_sequence_parallel", True),
        Row("gradients_f32", _T + "mixed_precision_reduce", True, {"float32": True, "bfloat16": False}),
        Row("offload_states", _T + "enable_cpu_offload", False),
    ),
    (
        OptionRule({"model.name": "llama3", "model.flavor": "debugmodel"},
             tuple(next(iter(FLAVORS.values()))), _read_model, _write_model),
        OptionRule({_P + "data_parallel_replicate_degree": 1, _P + "data_parallel_shard_degree": -1,
              _P + "fsdp_reshard_after_forward": "default"},
             ("zero", "r"), _read_shards, _write_shards),
        OptionRule({_T + "local_batch_size": 8, _T + "global_batch_size": -1,
              _P + "pipeline_parallel_microbatch_size": 1,
              "experimental.pipeline_parallel_microbatches": None},
             ("micro_batch", "batch"), _read_batch, _write_batch),
        OptionRule({_P + "pipeline_parallel_schedule": "1F1B",
              _P + "pipeline_parallel_layers_per_stage": None},
             ("schedule", "chunks"), _read_schedule, _write_schedule),
        OptionRule({"activation_checkpoint.mode": "selective",
              "activation_checkpoint.selective_ac_option": "2"},
             ("checkpoint",), _read_recompute, _write_recompute),
        OptionRule({_T + "dtype": "float32", _T + "mixed_precision_param": "bfloat16"},
             ("dtype", "master"), _read_dtype, _write_dtype),
        OptionRule({"model.converters": None, "float8.enable_float8_linear": None, "model.handlers": None, "float8.recipe_name": None,
              "quantize.linear.float8.recipe_name": None, _MX_RECIPE: None},
             ("float8",), _read_float8, _write_float8),
        OptionRule({_P + "enable_async_tensor_parallel": None,
              "compile.enable_async_tensor_parallel": None, "compile.enable": None},
             ("overlap",), _read_overlap, _write_overlap),
    ),
    (
        *("job.*", "profiling.*", "metrics.*", "optimizer.*", "lr_scheduler.*", "comm.*"),
        *("checkpoint.*", "training.*", "experimental.*", "fault_tolerance.*", "debug.*"),
        *("model.*", "float8.*", "quantize.*", "compile.*", "memory_estimation.*"),
        *("activation_checkpoint.*", "validation.*", "parallelism.*", "mx.*", "dataloader.*"),
        *("loss.*", "profiler.*", "validator.*", "hf_assets_path", "tokenizer.*"),
    ),
    {
        _P + "pipeline_parallel_schedule_csv": "give the schedule to `distir simulate`",
        _P + "expert_tensor_parallel_degree": "DistIR divides experts like other layers",
        _P + "module_fqns_per_model_part": "DistIR's pipelines have equal stages here",
    },
    "torchtitan, torchtitan/config/configs.py, 0.3.0, and job_config.py of 0.1 and 0.2",
)  # fmt: skip


class Torchtitan(System):
    """torchtitan: a TOML file, or a Python function that returns a configuration."""

    name: ClassVar[str] = "torchtitan"
    table: ClassVar[OptionTable] = TABLE
    suffixes: ClassVar[tuple[str, ...]] = (".toml", ".py")

    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        if path.endswith(".py"):
            found = python_options(text, path, given.get("config", ""))
            found.launch = {"python": True}
        else:
            found = read_options(text, path, "toml")
        for name, value in given.items():
            if name != "config":
                found.values[name] = (
                    int(value) if value.lstrip("-").isdigit() else value
                )
        for old, new in (
            (_T + "batch_size", _T + "local_batch_size"),
            (_T + "data_parallel_degree", _P + "data_parallel_shard_degree"),
            (_T + "enable_float8_linear", "float8.enable_float8_linear"),
            *((s + n, _P + n) for s in _OLD for n in MOVED),
        ):
            if old in found.values:
                found.values[new] = found.values.pop(old)
                found.where[new] = found.place(old)
        return found

    def started(self, document: Document, settings: RunSettings) -> RunSettings:
        if settings.devices:
            return settings
        r = document.values.get(_P + "data_parallel_replicate_degree", 1)
        shard = document.values.get(_P + "data_parallel_shard_degree", -1)
        for name, value in (("replicate", r), ("shard", shard)):
            if not isinstance(value, int):
                raise DistIRError(
                    f"{document.path}: data_parallel_{name}_degree wants a whole number, "
                    f"not {value!r}"
                )
        if shard == -1:
            raise DistIRError(
                f"{document.path}: data_parallel_shard_degree is -1, all devices; say how "
                f"many devices the run has with --devices"
            )
        return replace(
            settings, devices=r * shard * settings.t * settings.p * settings.c
        )

    def settle(self, document: Document, settings: RunSettings) -> RunSettings:
        return replace(settings, positions=settings.seq)

    def check(self, settings: RunSettings) -> list[str]:
        if settings.dtype == "f16":
            raise DistIRError(
                "torchtitan trains in bfloat16 or float32, not in float16"
            )
        if settings.experts:
            raise DistIRError("DistIR's table of torchtitan has its dense models only")
        remarks: list[str] = []
        if settings.checkpoint == "products":
            remarks.append(
                "torchtitan's op policy also recomputes every second product"
            )
        if settings.checkpoint.startswith("full"):
            remarks.append(
                "torchtitan recomputes whole layers; the plan recomputes only what "
                "gradients need"
            )
        return remarks

    def write(
        self, settings: RunSettings, kept: Mapping[str, Any], said: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        if settings.t == 1:
            settings = replace(settings, sequence_parallel=True)
        if not settings.gradients_f32 and settings.dtype == "f32":
            settings = replace(settings, gradients_f32=True)
        return super().write(settings, kept, said)

    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        if launch.get("python"):
            return python_text(values)
        return toml_text(values)
