"""
Writes modules in training mode as PyTorch's exporters should.

The exporters lose training mode for two ops: the newer one writes batch normalisation
without its mode, both write the dropout inside attention without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from distir.errors import DistIRError

if TYPE_CHECKING:
    import torch

_ON = "distir.training_mode"


def parts_that_change(module: torch.nn.Module) -> list[str]:
    """
    Returns the names of the parts in training mode that compute something else in
    evaluation mode: those with a rate of dropout, and batch normalisations.
    """
    from torch.nn.modules.batchnorm import (
        _BatchNorm,  # pyright: ignore[reportPrivateUsage]
    )
    from torch.nn.modules.dropout import (
        _DropoutNd,  # pyright: ignore[reportPrivateUsage]
    )

    found: list[str] = []
    for name, part in module.named_modules():
        # Attention and recurrent layers hold the rate of their dropout themselves.
        own = part.p if isinstance(part, _DropoutNd) else getattr(part, "dropout", 0.0)
        drops = isinstance(own, float | int) and own > 0
        if part.training and (drops or isinstance(part, _BatchNorm)):
            found.append(name or type(part).__name__)
    return found


def training_norms(module: torch.nn.Module) -> dict[str, float]:
    """
    Returns the fraction of the running statistics that remains in a step, by name, for
    every batch normalisation in training mode. Raises DistIRError for one that averages
    over all steps.
    """
    from torch.nn.modules.batchnorm import (
        _BatchNorm,  # pyright: ignore[reportPrivateUsage]
    )

    found: dict[str, float] = {}
    for name, part in module.named_modules():
        if not isinstance(part, _BatchNorm) or not part.training:
            continue
        if not part.track_running_stats or part.momentum is None:
            raise DistIRError(
                f"{type(part).__name__} {name!r} has no running statistics with a fixed "
                f"momentum, which is what can be trained; set its momentum and "
                f"track_running_stats=True, or put it into evaluation mode"
            )
        found[name] = 1 - part.momentum
    return found


def write_training_mode(model: ModelProto, norms: dict[str, float]) -> None:
    """
    Writes into an exported model what the exporters lose; `norms` is `training_norms` of
    the module.
    """
    by_statistics = {f"{name}.running_mean": kept for name, kept in norms.items()}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" and node.input[3] in by_statistics:
            _train_norm(node, by_statistics[node.input[3]])
        elif node.op_type == "Dropout" and len(node.input) == 2:
            _train_dropout(model, node)


def _train_norm(node: NodeProto, kept: float) -> None:
    others = [a for a in node.attribute if a.name not in ("training_mode", "momentum")]
    del node.attribute[:]
    node.attribute.extend(others)
    node.attribute.append(helper.make_attribute("training_mode", 1))
    node.attribute.append(helper.make_attribute("momentum", kept))
    for statistic in ("mean", "variance")[len(node.output) - 1 :]:
        node.output.append(f"{node.output[0]}.running_{statistic}")


def _train_dropout(model: ModelProto, node: NodeProto) -> None:
    if all(tensor.name != _ON for tensor in model.graph.initializer):
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), _ON))
    node.input.append(_ON)
