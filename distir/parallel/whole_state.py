"""The whole tensors of a parallel module, brought together on rank 0."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def whole_state(
    named: Mapping[str, torch.Tensor], source: nn.Module, device: torch.device
) -> dict[str, torch.Tensor]:
    """
    Returns, on rank 0, the whole tensors of the state dictionary of `source` by name, on the
    CPU; other ranks get an empty dictionary. `named` has the parts of this rank, which with a
    pipeline are those of its stages. At most one whole tensor is on a device at a time. Every
    rank must call this.
    """
    state = source.state_dict(keep_vars=True)
    every: list[set[str]] = [set()] * dist.get_world_size()
    dist.all_gather_object(every, {name for name in state if name in named})
    found: dict[str, torch.Tensor] = {}
    first: dict[int, str] = {}
    for name, example in state.items():
        if id(example) in first:  # another name of a tied parameter
            if dist.get_rank() == 0:
                found[name] = found[first[id(example)]]
            continue
        first[id(example)] = name
        value = _whole(named[name]) if name in named else None
        holders = [rank for rank, names in enumerate(every) if name in names]
        if 0 not in holders and holders:
            if value is None:
                value = torch.empty(example.shape, dtype=example.dtype, device=device)
            value = value.contiguous()
            parts = torch.view_as_real(value) if value.is_complex() else value
            dist.broadcast(parts, holders[0])
        if dist.get_rank() == 0:
            # What no rank holds does not change: a constant of the programs.
            kept = example.detach() if value is None else value
            found[name] = kept.cpu()
    return found if dist.get_rank() == 0 else {}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
