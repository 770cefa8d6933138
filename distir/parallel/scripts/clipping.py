"""Norms of gradients that are split over ranks, and clipping by these norms."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from distir.errors import DistIRError


def clip(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    order: float,
    kind: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """
    Scales the gradients of `parameters` so that their norm of order `order`, over the
    parameters of all ranks, is at most `max_norm`. Returns the norm before the scaling,
    of type `kind` on `device`. Every rank must call this function, even without
    parameters. Raises DistIRError for a gradient that is not a DTensor.
    """
    gradients = [_in_parts(p.grad) for p in parameters if p.grad is not None]
    norm = torch.zeros((), dtype=kind, device=device)
    if order == inf:
        for gradient in gradients:
            norm = torch.maximum(norm, _local_norm(gradient, inf).to(kind))
        dist.all_reduce(norm, dist.ReduceOp.MAX)
    else:
        for gradient in gradients:
            norm += _share_of_power(gradient, order)
        dist.all_reduce(norm)
        norm = norm ** (1 / order)
    if max_norm < inf:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.to_local().mul_(factor)
    return norm


def _in_parts(gradient: torch.Tensor) -> DTensor:
    if isinstance(gradient, DTensor):
        return gradient
    raise DistIRError(
        f"a gradient of shape {list(gradient.shape)} is of a parameter that belongs to no "
        f"parallel module, so that nothing tells which ranks have the same; clip the gradients "
        f"of other modules in a call of their own (torch.nn.utils.clip_grad_norm_)"
    )


def _local_norm(gradient: DTensor, order: float) -> torch.Tensor:
    """
    Returns the norm of order `order` of this rank's part of a gradient, or 0 if the
    part is empty.
    """
    own = gradient.to_local().flatten()
    if not own.numel():
        return torch.zeros((), device=own.device)
    kind = torch.promote_types(own.dtype, torch.float32)
    return torch.linalg.vector_norm(own, order, dtype=kind)


def _share_of_power(gradient: DTensor, order: float) -> torch.Tensor:
    """
    Returns this rank's share of the sum, over all elements of a gradient, of their
    magnitude to the power `order`. An element that several ranks hold counts once in
    the sum over all ranks.
    """
    copies = prod(
        size
        for placement, size in zip(
            gradient.placements, gradient.device_mesh.shape, strict=True
        )
        if placement.is_replicate()
    )
    return _local_norm(gradient, order) ** order / copies
