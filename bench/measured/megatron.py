"""
Weak scaling of GPTs on up to 1536 A100s: Narayanan et al., SC'21 (arXiv:2104.04473), Table
1. All layers are checkpointed, and run again as a whole; pipelines are interleaved where the
paper's are.
"""

from __future__ import annotations

from typing import Any

from measured.clusters import GPUS
from measured.rows import Row
from measured.training import Model, Parallelism, Step

PROFILE = "A100-megatron"


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of `megatron_weak_scaling_*.json`."""
    fixed, gpu = data["fixed_config"], data["hardware_ref"]
    return [_row(r, fixed, gpu) for r in data["records"]]


def _row(r: dict[str, Any], fixed: dict[str, Any], gpu: str) -> Row:
    model = Model(
        r["layers"], r["hidden"], r["heads"], fixed["vocab_size"], fixed["seq"],
        dropout=0.1,
    )  # fmt: skip
    chunks = r["virtual_stages"] or 1
    parallelism = Parallelism(
        r["dp"],
        r["tp"],
        r["pp"],
        r["global_batch"] // (r["micro_batch"] * r["dp"]),
        checkpoint="whole",
        schedule="interleaved-1f1b" if chunks > 1 else "",
        chunks=chunks if chunks > 1 else None,
    )
    # The reported rate counts the paper's own number of operations.
    h, layers, tokens = r["hidden"], r["layers"], r["global_batch"] * fixed["seq"]
    flops = 96 * tokens * layers * h * h
    flops *= 1 + fixed["seq"] / (6 * h) + fixed["vocab_size"] / (16 * layers * h)
    rate = r["measured"]["tflops_per_gpu"] * 1e12
    return Row(
        f"{r['model']} on {r['n_gpus']}",
        flops / (r["n_gpus"] * rate),
        flops / (r["n_gpus"] * GPUS[gpu].peak),
        Step(model, r["global_batch"], parallelism, gpu, PROFILE),
        source="Megatron-LM",
    )
