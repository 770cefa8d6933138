"""Emitter of the gradient of shrinkage."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates(
    {"shrink_grad": "torch.ops.aten.hardshrink_backward({*}, {lambd})"}, "train"
)
