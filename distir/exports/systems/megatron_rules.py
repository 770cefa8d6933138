"""What Megatron's options say only together; NeMo and Megatron Bridge share these rules."""

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
    """Whether a switch was given: a flag without a value, or a true value of a file."""
    return value not in (None, False, "False", "false", 0)


VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "GPTSentencePieceTokenizer": 32000,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
}
"""The words of tokenizers, by the names of Megatron's `--tokenizer-type`."""


def padded_vocabulary(settings: RunSettings) -> int:
    """Returns the rows of the embedding: a multiple of 128 on each tensor-parallel device."""
    multiple = 128 * settings.t
    return -(-settings.vocab // multiple) * multiple


def says_vocabulary(values: Values) -> bool:
    """Whether options say the number of words themselves."""
    return "vocab-size" in values or "padded-vocab-size" in values


def read_vocabulary(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the number of words, which may be that of the tokenizer."""
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
    """Returns the options of a vocabulary without a tokenizer."""
    if settings.vocab == VOCABULARIES["GPT2BPETokenizer"]:
        return {}
    return {"tokenizer-type": "NullTokenizer", "vocab-size": settings.vocab}


def read_dtype(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the types of parameters and of the sums of gradients."""
    if on(values["bf16"]):
        return {"dtype": "bf16", "gradients_f32": not on(values["grad-reduce-in-bf16"])}
    summed = on(values["accumulate-allreduce-grads-in-fp32"])
    return {"dtype": "f16" if on(values["fp16"]) else "f32", "gradients_f32": summed}


def write_dtype(settings: RunSettings) -> Mapping[str, Any]:
    """Returns the options of the types."""
    if settings.dtype == "bf16":
        less = {} if settings.gradients_f32 else {"grad-reduce-in-bf16": True}
        return {"bf16": True, **less}
    found = {"fp16": True} if settings.dtype == "f16" else {}
    if settings.gradients_f32:
        found["accumulate-allreduce-grads-in-fp32"] = True
    return found


def read_zero(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the ZeRO stage of the distributed optimizer, or of FSDP."""
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
    """Returns the options of a ZeRO stage; stages 2 and 3 are Megatron FSDP's."""
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
    """Returns the kinds of communication that overlap computation."""
    kinds = {
        "dp": on(values["overlap-grad-reduce"]),
        "tp": on(values["tp-comm-overlap"]),
        "params": on(values["overlap-param-gather"]),
    }
    return {"overlap": ",".join(kind for kind, given in kinds.items() if given)}


def write_overlap(settings: RunSettings) -> Mapping[str, Any]:
    """Returns the options of overlap. Parameters are gathered with ZeRO only."""
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
    """Returns the number of heads of keys and values."""
    if not on(values["group-query-attention"]):
        return {"kv_heads": known.heads}
    return {"kv_heads": whole("--num-query-groups", values["num-query-groups"])}


def write_heads(settings: RunSettings) -> Mapping[str, Any]:
    """Returns the options of grouped queries."""
    if settings.kv_heads == settings.heads:
        return {}
    return {"group-query-attention": True, "num-query-groups": settings.kv_heads}


def read_pipeline(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the schedule and the stages per pipeline rank."""
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
    """Returns the options of an interleaved schedule."""
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
"""The options of recomputation; the last one is of versions before Megatron-Core."""


def read_recompute(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the checkpointing policy of the layers."""
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
    """Returns the options of a checkpointing policy."""
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
    """Checks that experts are divided like other layers, and in all layers."""
    degree = values["expert-tensor-parallel-size"]
    if degree is not None and str(degree) != str(known.t):
        raise DistIRError(
            f"--expert-tensor-parallel-size {degree} cannot be predicted: DistIR divides "
            f"experts like other layers, over {known.t} devices"
        )
    if str(values["moe-layer-freq"]) != "1":
        raise DistIRError(
            f"--moe-layer-freq {values['moe-layer-freq']} cannot be predicted: DistIR "
            f"builds experts in every layer"
        )
    return {}


def write_experts(settings: RunSettings) -> Mapping[str, Any]:
    """Returns no options, as experts are divided like other layers."""
    return {}


def read_float8(values: Values, known: RunSettings) -> Mapping[str, Any]:
    """Returns the scaling of products in float8."""
    if values["fp8-format"] in (None, "none", False) and not on(values["fp8-hybrid"]):
        return {"float8": ""}
    recipe = values["fp8-recipe"]
    if recipe not in ("delayed", "tensorwise"):
        raise DistIRError(
            f"--fp8-recipe {recipe} cannot be predicted; DistIR scales tensors (delayed, "
            f"tensorwise)"
        )
    return {"float8": "tensor"}


def write_float8(settings: RunSettings) -> Mapping[str, Any]:
    """Returns the options of float8."""
    if not settings.float8:
        return {}
    if settings.float8 != "tensor":
        raise DistIRError(
            f"megatron has no float8 with a scale for each {settings.float8}"
        )
    return {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}


def whole(option: str, value: Any) -> int:
    """Returns a whole number. Raises DistIRError, which names the option."""
    try:
        number = Fraction(str(value))
    except ValueError:
        number = Fraction(1, 2)
    if number.denominator != 1 or number < 1:
        raise DistIRError(f"{option} wants a whole number, not {value!r}")
    return int(number)
