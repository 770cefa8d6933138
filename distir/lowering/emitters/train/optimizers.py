"""Emitter of what clipping gradients needs; `fusions.updates` has the updates."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates({"square_sum": "{0}.to({result:dtype}).square().sum()"}, "train")
