"""
The inputs and outputs of a module: example inputs that share no memory, and names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def distinct(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    Returns example inputs of a module in which no tensor shares memory with a second
    input, or with a parameter or buffer of the module. Tensors that share memory are
    copied.

    PyTorch's exporters treat a tensor that is given twice as one input, but a later
    call may pass two different tensors.
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
    """Returns an id that is equal for two tensors in the same memory."""
    import torch

    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def leaf_names(structure: Any, default: str) -> list[str]:
    """
    Returns a name for each leaf of nested dictionaries, lists and tuples: its dotted
    path. The name is `default` if `structure` is itself a leaf.
    """
    if isinstance(structure, Mapping):
        items = list(structure.items())
    elif isinstance(structure, list | tuple):
        items = list(enumerate(structure))
    else:
        return [default]
    names: list[str] = []
    for key, value in items:
        path = str(key) if isinstance(key, str) else f"{default}{key}"
        if isinstance(value, Mapping | list | tuple):
            names += [f"{path}.{inner}" for inner in leaf_names(value, "")]
        else:
            names.append(path)
    return names
