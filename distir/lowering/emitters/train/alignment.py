"""Emitters of the loss of all alignments."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

_OPTIONS = "({*}, blank={blank}, zero_infinity={zero_infinity:flag})"

torch_templates(
    {name: f"{name}{_OPTIONS}" for name in ("ctc_loss", "ctc_loss_grad")},
    "train",
    "alignment",
)
