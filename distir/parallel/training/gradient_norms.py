"""The norm of the gradients of a parallel module, over the ranks that hold their parts."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def clip_norm(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    norm_type: float,
    start: torch.Tensor,
) -> torch.Tensor:
    """
    Scales the gradients of `parameters`, which are DTensors, so that their norm over the
    parameters of all ranks is at most `max_norm`. Returns the norm before, in the type and
    on the device of the zero `start`. Every rank must call this.
    """
    gradients = [cast(DTensor, p.grad) for p in parameters if p.grad is not None]
    norm = start
    if norm_type == inf:
        for gradient in gradients:
            norm = torch.maximum(norm, _local_norm(gradient, inf).to(norm.dtype))
        dist.all_reduce(norm, dist.ReduceOp.MAX)
    else:
        for gradient in gradients:
            norm += _share_of_power(gradient, norm_type)
        dist.all_reduce(norm)
        norm = norm ** (1 / norm_type)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.to_local().mul_(factor)
    return norm


def _local_norm(gradient: DTensor, order: float) -> torch.Tensor:
    """Returns the norm of this rank's part of a gradient; 0 if the part is empty."""
    own = gradient.to_local().flatten()
    if not own.numel():
        return torch.zeros((), device=own.device)
    kind = torch.promote_types(own.dtype, torch.float32)
    return torch.linalg.vector_norm(own, order, dtype=kind)


def _share_of_power(gradient: DTensor, order: float) -> torch.Tensor:
    """
    Returns this rank's contribution to the sum over all elements of their magnitude to
    the power `order`. Elements that several ranks hold count once in the sum over all
    ranks.
    """
    copies = prod(
        size
        for placement, size in zip(
            gradient.placements, gradient.device_mesh.shape, strict=True
        )
        if placement.is_replicate()
    )
    return _local_norm(gradient, order) ** order / copies
