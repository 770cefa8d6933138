"""Emitters of copies to and from the host's memory."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates({"offload": "offload({0})", "fetch": "fetch({0})"}, "train", "offload")
