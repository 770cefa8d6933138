"""Example inputs that are one tensor, or parts of one, at several places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def distinct(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    Returns example inputs of a module in which no tensor shares memory with another or
    with a parameter or buffer of the module; tensors that do become copies. PyTorch's
    exporters take a tensor that is given twice for one input, and a later call may give two.
    """
    import torch
    from torch.utils import _pytree

    seen = {_memory(t) for t in (*module.parameters(), *module.buffers())}

    def own(tensor: torch.Tensor) -> torch.Tensor:
        memory = _memory(tensor)
        if memory not in seen:
            seen.add(memory)
            return tensor
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return _pytree.tree_map_only(torch.Tensor, own, (tuple(args), dict(kwargs or {})))


def _memory(tensor: torch.Tensor) -> int:
    """Returns a number that is the same for two tensors in the same memory."""
    import torch

    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
