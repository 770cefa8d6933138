"""
GPT training on one node of A100s with Megatron-DeepSpeed: the measurements of vTrain
(Bang et al., MICRO 2024; github.com/VIA-Research/vTrain, data/ground_truth_single.csv).

The steps checkpoint all layers and run 1F1B with equal stages; dropout is Megatron's
default of 0.1.
"""

from __future__ import annotations

from typing import Any

from measured.clusters import GPUS
from measured.rows import Row
from measured.training import Model, Parallelism, Step

PROFILE = "A100-megatron"


def load(data: dict[str, Any]) -> list[Row]:
    """The rows of `gpt_single_node_*.json`."""
    fixed = data["fixed_config"]
    return [_row(r, fixed["vocab_size"], data["hardware_ref"]) for r in data["records"]]


def _row(r: dict[str, Any], vocab: int, gpu: str) -> Row:
    padded = -(-vocab // (128 * r["tp"])) * 128 * r["tp"]
    model = Model(r["layers"], r["hidden"], r["heads"], padded, r["seq"], dropout=0.1)
    k = r["global_batch"] // (r["micro_batch"] * r["dp"])
    parallelism = Parallelism(r["dp"], r["tp"], r["pp"], k, recompute=True)
    flops = model.flops(r["global_batch"], recompute=True)
    name = " ".join(
        f"{key}={r[key]}"
        for key in ("hidden", "layers", "tp", "pp", "dp", "micro_batch", "global_batch")
    )
    return Row(
        name,
        r["iteration_ms"] / 1e3,
        flops / (parallelism.devices * GPUS[gpu].peak),
        Step(model, r["global_batch"], parallelism, gpu, PROFILE),
    )
