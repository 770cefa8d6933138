"""
Rules for combinations of Megatron's options that determine one setting. NeMo and
Megatron Bridge use the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from distir.errors import DistIRError
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.table import Values
from distir.transforms.memory.checkpoint_policies import LayerPolicies

DEVICE_SCHEDULES = ("", "1f1b", "interleaved-1f1b")
"""The pipeline schedules that Megatron-Core runs."""

_FSDP = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3, "no_shard": 0}


def on(value: Any) -> bool:
    """
    Whether `value` turns a switch on: any value but None, False, "False", "false" and
    0.
    """
    return value not in (None, False, "False", "false", 0)


VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "GPTSentencePieceTokenizer": 32000,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
}
"""
The number of words of each tokenizer, by its name in Megatron's `--tokenizer-type`.
"""


def padded_vocabulary(settings: RunSettings) -> int:
    """
    Returns the number of rows of the embedding: the vocabulary rounded up to a multiple
    of 128 times the tensor-parallel degree.
    """
    multiple = 128 * settings.t
    return -(-settings.vocab // multiple) * multiple


def says_vocabulary(values: Values) -> bool:
    """
    Whether the options give the size of the vocabulary directly, without a tokenizer.
    """
    return "vocab-size" in values or "padded-vocab-size" in values


def read_vocabulary(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """
    Returns the size of the vocabulary, from the options or from the tokenizer. Raises
    DistIRError if neither gives the size.
    """
    if count := values["padded-vocab-size"] or values["vocab-size"]:
        return {"vocab": whole("--vocab-size", count)}
    kind = values["tokenizer-type"] or "GPT2BPETokenizer"
    count = known.vocab or VOCABULARIES.get(kind)
    if not count:
        raise DistIRError(
            f"the size of the vocabulary is in the files of {kind}; add --vocab N"
        )
    return {"vocab": count}


def write_vocabulary(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for the size of the vocabulary: no options for GPT-2's size,
    else a null tokenizer of that size.
    """
    if settings.vocab == VOCABULARIES["GPT2BPETokenizer"]:
        return {}
    return {"tokenizer-type": "NullTokenizer", "vocab-size": settings.vocab}


def read_dtype(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the type of the parameters, and whether gradients are summed in f32."""
    if on(values["bf16"]):
        return {"dtype": "bf16", "gradients_f32": not on(values["grad-reduce-in-bf16"])}
    summed = on(values["accumulate-allreduce-grads-in-fp32"])
    return {"dtype": "f16" if on(values["fp16"]) else "f32", "gradients_f32": summed}


def write_dtype(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for the type of the parameters and the summation of gradients.
    """
    if settings.dtype == "bf16":
        less = {} if settings.gradients_f32 else {"grad-reduce-in-bf16": True}
        return {"bf16": True, **less}
    found = {"fp16": True} if settings.dtype == "f16" else {}
    if settings.gradients_f32:
        found["accumulate-allreduce-grads-in-fp32"] = True
    return found


def read_zero(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """
    Returns the ZeRO stage: FSDP's stage if FSDP is on, else 1 with the distributed
    optimizer and 0 without.
    """
    if on(values["use-torch-fsdp2"]):
        return {"zero": 3}
    if on(values["use-megatron-fsdp"]) or on(values["use-custom-fsdp"]):
        strategy = values["data-parallel-sharding-strategy"]
        if strategy not in _FSDP:
            raise DistIRError(
                f"--data-parallel-sharding-strategy cannot be {strategy!r}; choose from "
                f"{', '.join(_FSDP)}"
            )
        return {"zero": _FSDP[strategy]}
    return {"zero": 1 if on(values["use-distributed-optimizer"]) else 0}


def write_zero(settings: RunSettings) -> Mapping[str, Any]:
    """Returns the options for a ZeRO stage. Stages 2 and 3 use Megatron FSDP."""
    if settings.zero < 2:
        return {"use-distributed-optimizer": True} if settings.zero else {}
    strategy = next(name for name, stage in _FSDP.items() if stage == settings.zero)
    return {
        "use-distributed-optimizer": True,
        "use-megatron-fsdp": True,
        "data-parallel-sharding-strategy": strategy,
        "no-gradient-accumulation-fusion": True,
    }


def read_overlap(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """
    Returns the kinds of communication that overlap with computation, separated by
    commas.
    """
    kinds = {
        "dp": on(values["overlap-grad-reduce"]),
        "tp": on(values["tp-comm-overlap"]),
        "params": on(values["overlap-param-gather"]),
    }
    return {"overlap": ",".join(kind for kind, given in kinds.items() if given)}


def write_overlap(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for overlap. Gathers of parameters overlap only with ZeRO, and
    tensor parallelism only if its degree is above 1.
    """
    kinds = settings.overlap.split(",")
    found: dict[str, Any] = {}
    if "dp" in kinds or "params" in kinds:
        found["overlap-grad-reduce"] = True
    if "params" in kinds and settings.zero:
        found["overlap-param-gather"] = True
    if "tp" in kinds and settings.t > 1:
        found["tp-comm-overlap"] = True
    return found


def read_heads(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the number of key-value heads."""
    if not on(values["group-query-attention"]):
        return {"kv_heads": known.heads}
    return {"kv_heads": whole("--num-query-groups", values["num-query-groups"])}


def write_heads(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for grouped-query attention, or no options if each query head
    has its own key head.
    """
    if settings.kv_heads == settings.heads:
        return {}
    return {"group-query-attention": True, "num-query-groups": settings.kv_heads}


def read_pipeline(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """
    Returns the pipeline schedule and the number of stages per pipeline rank, or "" and
    0 if a rank has one stage. Raises DistIRError if the layers cannot be divided
    evenly.
    """
    each, chunks = (
        values["num-layers-per-virtual-pipeline-stage"],
        values["num-virtual-stages-per-pipeline-rank"],
    )
    if each is not None and known.p > 1:
        layers = whole("--num-layers-per-virtual-pipeline-stage", each)
        if known.layers % (known.p * layers):
            raise DistIRError(
                f"--num-layers-per-virtual-pipeline-stage {each}: {known.layers} layers on "
                f"{known.p} pipeline ranks cannot be divided into stages of {layers}"
            )
        found = known.layers // (known.p * layers)
    elif chunks is not None:
        found = whole("--num-virtual-stages-per-pipeline-rank", chunks)
    else:
        found = 0
    if found < 2 or known.p == 1:
        return {"schedule": "", "chunks": 0}
    return {"schedule": "interleaved-1f1b", "chunks": found}


def write_pipeline(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for an interleaved schedule, or no options for 1F1B. Raises
    DistIRError for a schedule that Megatron does not have.
    """
    if settings.schedule not in DEVICE_SCHEDULES:
        raise DistIRError(
            f"megatron has no pipeline schedule {settings.schedule}; it has 1f1b and "
            f"interleaved-1f1b"
        )
    if settings.schedule != "interleaved-1f1b":
        return {}
    chunks = settings.chunks or 2
    return {
        "num-layers-per-virtual-pipeline-stage": settings.layers
        // (settings.p * chunks)
    }


RECOMPUTE = {
    "recompute-activations": None,
    "recompute-granularity": None,
    "recompute-method": None,
    "recompute-num-layers": None,
    "recompute-modules": None,
    "checkpoint-activations": None,
}
"""The options for recomputation. The last one is from versions before Megatron-Core."""


def read_recompute(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """
    Returns the checkpointing policy of the layers. Raises DistIRError for recomputed
    modules that DistIR cannot predict, or for an unknown granularity.
    """
    granularity = values["recompute-granularity"]
    if on(values["checkpoint-activations"]):
        granularity = "full"
    if on(values["recompute-activations"]) or granularity == "selective":
        modules = values["recompute-modules"] or ["core_attn"]
        modules = modules.split() if isinstance(modules, str) else list(modules)
        others = [m for m in modules if m not in ("core_attn", "layernorm", "moe_act")]
        if others:
            raise DistIRError(
                f"--recompute-modules {' '.join(others)} cannot be predicted: DistIR "
                f"recomputes core_attn, or whole layers"
            )
        return {"checkpoint": "selective"}
    if granularity in (None, "none"):
        return {"checkpoint": "none"}
    if granularity != "full":
        raise DistIRError(
            f"--recompute-granularity cannot be {granularity!r}; choose full or selective"
        )
    if values["recompute-method"] != "block":
        return {"checkpoint": "whole"}
    count = whole("--recompute-num-layers", values["recompute-num-layers"] or 1)
    stages = known.p * max(known.chunks, 1)
    each = known.layers // stages
    if count >= each:
        return {"checkpoint": "whole"}
    runs = [(count, each)] * stages
    return {"checkpoint": str(LayerPolicies.of_runs("whole", "none", runs))}


def write_recompute(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for a checkpointing policy. Raises DistIRError for a policy that
    Megatron does not have.
    """
    policies = LayerPolicies.of(settings.checkpoint, "megatron")
    policy, stages = policies.policy, settings.p * max(settings.chunks, 1)
    if policies.others != "none" or policy not in (
        "none",
        "selective",
        "full",
        "whole",
    ):
        raise DistIRError(
            f"megatron cannot recompute by {settings.checkpoint}; it recomputes nothing, "
            f"attention (selective), or whole layers (full)"
        )
    if policy == "none":
        return {}
    if policies.is_one:
        if policy == "selective":
            return {"recompute-granularity": "selective"}
        return {
            "recompute-granularity": "full",
            "recompute-method": "uniform",
            "recompute-num-layers": 1,
        }
    if policy == "selective":
        raise DistIRError("megatron recomputes attention in all layers or in none")
    each = settings.layers // stages
    policy_of = policies.of_layers(settings.layers, "megatron")
    counts = {
        sum(p == policy for p in policy_of[i * each : (i + 1) * each])
        for i in range(stages)
    }
    if len(counts) > 1:
        raise DistIRError(
            f"megatron recomputes as many layers in each stage of the pipeline; "
            f"{settings.checkpoint} has {min(counts)} to {max(counts)}"
        )
    return {
        "recompute-granularity": "full",
        "recompute-method": "block",
        "recompute-num-layers": counts.pop(),
    }


def read_experts(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """
    Returns the degree of expert parallelism and the axes that divide the experts.
    Megatron's expert-parallel groups hold all tensor-parallel devices if experts have a
    tensor-parallel degree of 1. Raises DistIRError if the experts are divided in
    another way, or if some layers have no experts.
    """
    degree, tensor = (
        whole(f"--{name}", values[name] or known.t)
        for name in ("expert-model-parallel-size", "expert-tensor-parallel-size")
    )
    if str(values["moe-layer-freq"]) != "1":
        raise DistIRError(
            f"--moe-layer-freq {values['moe-layer-freq']} cannot be predicted: DistIR "
            f"builds experts in every layer"
        )
    if tensor == known.t:
        return {"e": degree, "expert_axes": "e"}
    if tensor == 1 and known.c == 1 and degree % known.t == 0:
        return {"e": degree // known.t, "expert_axes": "et"}
    raise DistIRError(
        f"--expert-tensor-parallel-size {tensor} with --expert-model-parallel-size "
        f"{degree} cannot be predicted: DistIR divides experts like other layers, over "
        f"{known.t} devices, or deals whole ones out over a multiple of these devices"
    )


def write_experts(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for expert parallelism. Raises DistIRError for experts over
    context-parallel devices.
    """
    if "c" in settings.expert_axes:
        raise DistIRError(
            f"megatron's groups of experts with context parallelism hold other devices "
            f"than expert_axes={settings.expert_axes}"
        )
    if settings.expert_axes == "e":
        return {"expert-model-parallel-size": settings.e} if settings.e > 1 else {}
    return {
        "expert-model-parallel-size": settings.e * settings.t,
        "expert-tensor-parallel-size": 1,
    }


def read_float8(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """
    Returns the recipe of matrix products in narrow floats: "tensor", "mxfp8" or
    "nvfp4", or "" without such products. Raises DistIRError for any other recipe.
    """
    if values["fp4-format"] not in (None, "none", False):
        recipe = values["fp4-recipe"]
        if recipe != "nvfp4":
            raise DistIRError(
                f"--fp4-recipe {recipe} cannot be predicted; DistIR has nvfp4"
            )
        return {"float8": recipe}
    if values["fp8-format"] in (None, "none", False) and not on(values["fp8-hybrid"]):
        return {"float8": ""}
    recipe = values["fp8-recipe"]
    if recipe == "mxfp8":
        return {"float8": recipe}
    if recipe not in ("delayed", "tensorwise"):
        raise DistIRError(
            f"--fp8-recipe {recipe} cannot be predicted; DistIR scales tensors (delayed, "
            f"tensorwise) or blocks (mxfp8)"
        )
    return {"float8": "tensor"}


def write_float8(settings: RunSettings) -> Mapping[str, Any]:
    """
    Returns the options for products in narrow floats. Raises DistIRError for a recipe
    that Megatron does not have.
    """
    if not settings.float8:
        return {}
    if settings.float8 == "mxfp8":
        return {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}
    if settings.float8 == "nvfp4":
        return {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}
    if settings.float8 != "tensor":
        raise DistIRError(
            f"megatron has no float8 with a scale for each {settings.float8}"
        )
    return {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}


def whole(option: str, value: Any) -> int:
    """
    Returns `value` as a positive integer. Raises DistIRError, which names `option`, if
    `value` is not a positive integer.
    """
    try:
        number = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        number = Fraction(1, 2)
    if number.denominator != 1 or number < 1:
        raise DistIRError(f"{option} wants a whole number, not {value!r}")
    return int(number)
