"""Options for models that are imported from PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from distir.options import option


@dataclass(frozen=True, kw_only=True)
class ModuleOptions:
    """Facts about a PyTorch module that its code does not tell."""

    equal_features: bool = option(
        False,
        "each sample has as many places for features of images or sounds as the module "
        "gives it (masked_scatter): samples are then independent, as micro-batches need it; "
        "results of other samples are NaN",
    )
