"""Nodes of our own domain in modules that PyTorch's exporter traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distir.frontends.onnx.names import TRAIN_DOMAIN


def train_node(
    name: str,
    inputs: Sequence[torch.Tensor],
    shape: Sequence[int],
    like: torch.Tensor,
    **attributes: int,
) -> torch.Tensor:
    """
    Returns the result, of the given shape and the type of `like`, of a node that the
    importer reads as the op of that name of the `train` dialect (`train_nodes`).
    """
    make: Callable[..., torch.Tensor] = torch.onnx.ops.symbolic
    return make(
        f"{TRAIN_DOMAIN}::{name}",
        inputs,
        attributes,
        dtype=like.dtype,
        shape=shape,
        version=1,
    )
