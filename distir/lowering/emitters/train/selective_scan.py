"""Emitters of the recurrence of selective state spaces."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates(
    {
        "selective_scan": "selective_scan({*})",
        "selective_scan_grad": "selective_scan_grad({*})",
    },
    "train",
    "selective_scan",
)
