"""
GPT training on one node of A100s with Megatron-DeepSpeed: the measurements of vTrain
(Bang et al., MICRO 2024; github.com/VIA-Research/vTrain, data/ground_truth_single.csv).

The steps run 1F1B with equal stages; dropout is Megatron's default of 0.1. The file says
that layers are checkpointed, as in the configuration that vTrain simulates; its times say
that they are not: a layer of width 2048 would need more FLOP/s than the device has. Without
tensor parallelism the vocabulary's 50257 rows are not padded to a multiple of 128 either:
the time of a micro-batch beside its layers is that of products with an odd dimension.
"""

from __future__ import annotations

from typing import Any

from measured.clusters import GPUS
from measured.rows import Row
from measured.training import Model, Parallelism, Step

PROFILE = "A100-megatron-deepspeed"


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of `gpt_single_node_*.json`."""
    fixed = data["fixed_config"]
    return [_row(r, fixed["vocab_size"], data["hardware_ref"]) for r in data["records"]]


def _row(r: dict[str, Any], vocab: int, gpu: str) -> Row:
    if r["tp"] > 1:
        vocab = -(-vocab // (128 * r["tp"])) * 128 * r["tp"]
    model = Model(r["layers"], r["hidden"], r["heads"], vocab, r["seq"], dropout=0.1)
    k = r["global_batch"] // (r["micro_batch"] * r["dp"])
    parallelism = Parallelism(r["dp"], r["tp"], r["pp"], k)
    flops = model.flops(r["global_batch"], recompute=False)
    name = " ".join(
        f"{key}={r[key]}"
        for key in ("hidden", "layers", "tp", "pp", "dp", "micro_batch", "global_batch")
    )
    return Row(
        name,
        r["iteration_ms"] / 1e3,
        flops / (parallelism.devices * GPUS[gpu].peak),
        Step(model, r["global_batch"], parallelism, gpu, PROFILE),
        source="vTrain",
    )
