"""Emitter of the gradient of running products."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates(
    {
        "cumprod_grad": "cumprod_grad({*}, {axis}, exclusive={exclusive:flag}, "
        "reverse={reverse:flag})"
    },
    "train",
    "cumulative",
)
