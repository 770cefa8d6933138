"""
MPT training with FSDP on A100s and H100s: MosaicML's llm-foundry
(github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md).

FSDP is ZeRO stage 3 (or 2) whose communication overlaps computation. Every micro-batch
scatters its gradients, as Composer enters `no_sync` for DistributedDataParallel alone
(github.com/mosaicml/composer, composer/trainer/dist_strategy.py). With the mixed precision
`DEFAULT` it scatters them in 32 bits, with `PURE` in 16 (its docs/source/notes/distributed_training;
`DEFAULT` did so again from version 0.16.4 on, which llm-foundry asked for when it published
the rows of H100, commit b2a43a1). Attention is one kernel. Checkpoints are PyTorch's
non-reentrant ones: recomputation stops when all that gradients need has been computed. Rows
in FP8 compute on H100 what our programs cannot express, and are left out.
"""

from __future__ import annotations

from typing import Any

from measured.clusters import GPUS
from measured.rows import Row
from measured.training import Model, Parallelism, Step

PROFILES = {"A100": "A100-llm-foundry", "H100": "H100-llm-foundry"}
GRADIENTS = {"DEFAULT": "f32", "PURE": "parameter"}
STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of `mpt_fsdp_*.json` in 16 bits."""
    fixed = data["fixed_config"]
    records = [r for r in data["records"] if r["precision"] != "amp_fp8"]
    return [_row(r, fixed) for r in records]


def _row(r: dict[str, Any], fixed: dict[str, Any]) -> Row:
    sizes = fixed["model_dims"][r["model"].removeprefix("mpt-")]
    model = Model(
        sizes["n_layers"], sizes["d_model"], sizes["n_heads"], fixed["vocab"],
        r["seq"], "bf16", fused=True, gradient_dtype=GRADIENTS[r["mp_mode"]],
    )  # fmt: skip
    recompute = r["activation_checkpointing"]
    parallelism = Parallelism(
        d=r["n_gpus"],
        k=r["grad_accum"],
        zero=STAGES[r["sharding"]],
        checkpoint="full" if recompute else "none",
        overlap=True,
    )
    tokens = r["global_batch"] * r["seq"]
    flops = model.flops(r["global_batch"], recompute)
    name = f"{r['gpu']} {r['n_gpus']} {r['model']} seq={r['seq']} {r['precision']}"
    profile = PROFILES[GPUS[r["gpu"]].kind]
    return Row(
        f"{name} micro_batch={r['micro_batch']} accumulate={r['grad_accum']}",
        tokens / r["measured"]["tokens_per_s"],
        flops / (r["n_gpus"] * GPUS[r["gpu"]].peak),
        Step(model, r["global_batch"], parallelism, r["gpu"], profile),
        source="llm-foundry",
    )
