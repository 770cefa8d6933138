"""Collects the results that ranks computed for their parts of a batch."""

from __future__ import annotations

import torch
import torch.distributed as dist


def rows_of_all(own: torch.Tensor, part: int, parts: int) -> torch.Tensor:
    """
    Returns the rows of all `parts` parts of a batch, in order. `own` [rows, ...] are
    the rows of part `part`, which this rank has; parts may have different numbers of
    rows. A scalar counts as one row. If several ranks have the same part, the result
    has its rows once. Every rank must call this function.
    """
    own = (own[None] if own.ndim == 0 else own).contiguous()
    world = dist.get_world_size()
    if world == 1:
        return own
    numbers = torch.tensor([part, len(own)], device=own.device)
    every = [torch.empty_like(numbers) for _ in range(world)]
    dist.all_gather(every, numbers)
    places, sizes = zip(*(row.tolist() for row in every), strict=True)
    padded = own.new_zeros((max(sizes), *own.shape[1:]))
    padded[: len(own)] = own
    found = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(found, padded)
    firsts = [places.index(each) for each in range(parts)]
    return torch.cat([found[rank][: sizes[rank]] for rank in firsts])
