"""Imported models and training steps of them, each made once per session."""

from __future__ import annotations

import functools

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.imported_model import ImportedModel
from distir.passes.differentiate import DifferentiatePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from support import models


def imported(name: str) -> ImportedModel:
    """Returns the program of a model, from the exporter that can export it."""
    # The newer exporter cannot export T5.
    return models.imported(name, "torchscript" if name == "t5" else "dynamo")


@functools.cache
def program(name: str, layers: bool, optimizer: str = "") -> ModuleOp:
    """Returns the model, with layers as functions or not, or a training step of it."""
    module = imported(name).module.clone()
    if layers:
        OutlineRepeatsPass().apply(Context(), module)
    if optimizer:
        loss = "mse" if name in ("mlp", "unet", "bert") else "cross_entropy"
        options = {"loss": loss, "optimizer": optimizer, "learning_rate": 0.1}
        DifferentiatePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    return module
