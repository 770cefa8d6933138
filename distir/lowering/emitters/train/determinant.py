"""Emitters of logarithms of determinants."""

from __future__ import annotations

from distir.lowering.emitter import torch_templates

torch_templates(
    {
        "slogdet": "slogdet({*})",
        "slogdet_grad": "slogdet_grad({*})",
    },
    "train",
    "determinant",
)
