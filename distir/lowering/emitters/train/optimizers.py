"""
Emitter of the sum of squares with which gradients are clipped; updates are emitted by
`fusions.updates`.
"""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates({"square_sum": "{0}.to({result:dtype}).square().sum()"}, "train")
