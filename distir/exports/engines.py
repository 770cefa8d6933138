"""
Exports serving plans as command-line flags of inference engines (vLLM, SGLang,
TensorRT-LLM).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distir.errors import DistIRError

FORMAT = "distir serving plan"
"""The value of the key `format` in a file that `distir serve-plan --json` writes."""


@dataclass(frozen=True)
class EngineSettings:
    """
    The settings of an engine for one pool of replicas.

    - `tensor`, `pipeline`, `data`, `experts`: degrees of parallelism; with experts on
      several devices, the `data` devices of a group divide the sequences;
    - `replicas`: the number of engines to run;
    - `max_sequences`, `batched_tokens`: the maximum numbers of sequences, and of tokens
      in a step, for each of the `data` devices;
    - `longest`: the maximum number of tokens of a request;
    - `static_share`: the share of a device's memory for parameters and caches;
    - `used_share`: the share for parameters, caches and the working memory of steps;
    - `free_share`: the share that caches may take of the memory left by parameters and
      steps;
    - `role`: `both`, `prefill` or `decode`;
    - `prefix_cache`: whether caches of common prefixes of prompts are reused;
    - `weights`, `cache`: the formats of quantised matrices and caches, or None.
    """

    tensor: int
    pipeline: int
    data: int
    experts: int
    replicas: int
    max_sequences: int
    batched_tokens: int
    longest: int
    static_share: float
    used_share: float
    free_share: float
    role: str
    prefix_cache: bool
    weights: str | None = None
    cache: str | None = None


def read_settings(path: Path) -> list[EngineSettings]:
    """
    Returns the settings of the best plan in a file that `distir serve-plan --json`
    wrote: one item per pool of replicas. A disaggregated plan has two pools, prefill
    and decode. Raises DistIRError if the file cannot be read, was not written by this
    command, or has no plan.
    """
    try:
        data: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DistIRError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise DistIRError(
            f"{path} is no plan of a service; `distir serve-plan --json` writes one"
        )
    try:
        return _settings(data, path)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DistIRError(
            f"{path} is damaged ({type(error).__name__}: {error}); write it again with "
            f"`distir serve-plan --json`"
        ) from error


def _settings(data: Mapping[str, Any], path: Path) -> list[EngineSettings]:
    """
    Returns the settings in the data of a plan. Raises KeyError, TypeError, ValueError
    or ZeroDivisionError if a field is missing or has the wrong type, and DistIRError if
    the data holds no plan.
    """
    if data["best"] is None:
        raise DistIRError(
            f"{path} has no plan that keeps its limits; search again with other limits "
            f"or more devices"
        )
    plan = data["best"]["plan"]
    roles = ("replica", "prefill", "decode")
    pools = [(name, plan[name]) for name in roles if name in plan]
    if not pools:
        raise ValueError(f"no pool of replicas among {', '.join(sorted(plan))}")
    share = float(data["memory_share"])
    formats = data["model"].get("formats", {})
    return [
        EngineSettings(
            tensor=int(pool["t"]),
            pipeline=int(pool["p"]),
            data=int(pool["e"]),
            experts=int(pool["t"] * pool["e"]) if data["model"]["experts"] else 1,
            replicas=int(pool["replicas"]),
            max_sequences=int(pool["max_sequences"] // pool["e"]),
            batched_tokens=int(pool["batched_tokens"] // pool["e"]),
            longest=int(data["workload"]["longest_request"]),
            static_share=round(pool["static_share"], 3),
            used_share=round(pool["static_share"] + pool["step_share"], 3),
            free_share=share,
            role="both" if name == "replica" else name,
            prefix_cache=data["workload"]["prefix_hits"] > 0,
            weights=formats.get("weights"),
            cache=formats.get("cache"),
        )
        for name, pool in pools
    ]


_FLOAT8 = "fp8"
"""The only format of fewer bits that a flag gives any checkpoint."""


def _vllm(s: EngineSettings) -> Mapping[str, Any]:
    flags: dict[str, Any] = {
        "tensor-parallel-size": s.tensor,
        "pipeline-parallel-size": s.pipeline,
        "data-parallel-size": s.data,
        "enable-expert-parallel": s.experts > 1,
        "max-num-seqs": s.max_sequences,
        "max-num-batched-tokens": s.batched_tokens,
        "enable-chunked-prefill": True,
        "max-model-len": s.longest,
        "gpu-memory-utilization": s.used_share,
        "enable-prefix-caching": s.prefix_cache,
        "quantization": s.weights == _FLOAT8 and _FLOAT8,
        "kv-cache-dtype": s.cache == _FLOAT8 and _FLOAT8,
    }
    if s.role != "both":
        side = "kv_producer" if s.role == "prefill" else "kv_consumer"
        connector = {"kv_connector": "NixlConnector", "kv_role": side}
        flags["kv-transfer-config"] = json.dumps(connector)
    return flags


def _sglang(s: EngineSettings) -> Mapping[str, Any]:
    # A group of tensor parallelism holds the devices that divide the sequences too.
    flags: dict[str, Any] = {
        "tp-size": s.tensor * s.data,
        "pp-size": s.pipeline,
        "dp-size": s.data,
        "enable-dp-attention": s.data > 1,
        "ep-size": s.experts,
        "max-running-requests": s.max_sequences * s.data,
        "chunked-prefill-size": s.batched_tokens,
        "context-length": s.longest,
        "mem-fraction-static": s.static_share,
        "disable-radix-cache": not s.prefix_cache,
        "quantization": s.weights == _FLOAT8 and _FLOAT8,
        "kv-cache-dtype": s.cache == _FLOAT8 and f"{_FLOAT8}_e4m3",
    }
    if s.role != "both":
        flags["disaggregation-mode"] = s.role
    return flags


def _tensorrt_llm(s: EngineSettings) -> Mapping[str, Any]:
    return {
        "tp_size": s.tensor * s.data,
        "pp_size": s.pipeline,
        "ep_size": s.experts,
        "max_batch_size": s.max_sequences,
        "max_num_tokens": s.batched_tokens,
        "max_seq_len": s.longest,
        "kv_cache_free_gpu_memory_fraction": s.free_share,
    }


@dataclass(frozen=True)
class Engine:
    """
    An inference engine: the command that starts it, and the function from settings to
    flags.
    """

    command: str
    flags: Callable[[EngineSettings], Mapping[str, Any]]


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine("vllm serve $MODEL", _vllm),
    "sglang": Engine("python -m sglang.launch_server --model-path $MODEL", _sglang),
    "tensorrt-llm": Engine("trtllm-serve $MODEL", _tensorrt_llm),
}
"""The engines for which `distir export` writes flags, by name."""


def engine_script(name: str, pools: list[EngineSettings]) -> str:
    """
    Returns a shell script with one command of engine `name` for each pool of replicas.
    In the script `$MODEL` is the model to serve. Flags with the value False are left
    out.
    """
    engine = ENGINES[name]
    lines = ["#!/bin/sh", "# Written by distir export. Usage: MODEL=... sh serve.sh"]
    for pool in pools:
        what = {"both": "each reads prompts and generates"}.get(
            pool.role, f"each does the {pool.role}"
        )
        lines += ["", f"# {pool.replicas} of these; {what}."]
        others = {"weights": pool.weights, "caches": pool.cache}
        lines += [
            f"# The plan has {side} in {kind}: serve a checkpoint that says so."
            for side, kind in others.items()
            if kind is not None and (kind != _FLOAT8 or name == "tensorrt-llm")
        ]
        if name == "tensorrt-llm" and pool.role != "both":
            lines.append(
                "# trtllm-serve disaggregated -c FILE joins context_servers (prefill) and "
                "generation_servers (decode)."
            )
        parts = [engine.command]
        for flag, value in engine.flags(pool).items():
            if value is True:
                parts.append(f"--{flag}")
            elif isinstance(value, str):
                parts.append(f"--{flag} '{value}'")
            elif value is not False:
                parts.append(f"--{flag} {value}")
        lines.append(" \\\n  ".join(parts))
    return "\n".join([*lines, ""])
