"""Emitters of the statistics and gradients of batch normalisation."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates(
    {
        "batch_norm_variance": "variance({*}, {count})",
        "batch_norm_grad": "gradients({*}, {epsilon:decimal})",
        "batch_norm_sums": "sums({*}, {epsilon})",
        "batch_norm_input_grad": "input_grad({*}, {epsilon}, {count})",
        "ghost_batch_norm": "ghost_norm({*}, {groups}, {epsilon:decimal})",
        "ghost_batch_norm_grad": "ghost_norm_grad({*}, {groups}, {epsilon:decimal})",
    },
    "train",
    module="batch_norm_gradients",
)
