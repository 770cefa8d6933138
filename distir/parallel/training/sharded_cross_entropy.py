"""A cross-entropy of logits whose classes are split over ranks."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Shard

from distir.errors import DistIRError

_ELEMENTS = 1 << 18
"""The number of logits whose exponentials are in memory at once."""


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    """
    Returns the mean cross-entropy of `logits` [..., classes] and the classes `labels`
    [...], as a scalar. The mean leaves out rows whose label is `ignore_index`. `logits`
    may be a DTensor whose classes are split over ranks. Each of these ranks must pass
    the same labels and call this function, and computes the exponentials of its own
    classes only. Raises DistIRError if the shapes do not fit.
    """
    if labels.shape != logits.shape[:-1] or not logits.dim():
        raise DistIRError(
            f"cross_entropy takes logits [..., classes] and labels [...], but they have "
            f"shapes {list(logits.shape)} and {list(labels.shape)}; give a label for each "
            f"row of logits"
        )
    last = Shard(logits.dim() - 1)
    rows = labels.flatten()
    if isinstance(logits, DTensor) and logits.placements == (last,):
        mesh = logits.device_mesh
        own = logits.to_local()
        # In an uneven split, the first ranks have parts of the size rounded up.
        start = mesh.get_local_rank() * -(-logits.shape[-1] // mesh.size())
        found = _ShardedCrossEntropy.apply(
            *(own.flatten(0, -2), rows, start, mesh.get_group(), ignore_index),
            weakref.ref(logits),
        )
        assert isinstance(found, torch.Tensor)
        return found
    whole = logits.full_tensor() if isinstance(logits, DTensor) else logits
    return F.cross_entropy(whole.flatten(0, -2), rows, ignore_index=ignore_index)


class _ShardedCrossEntropy(torch.autograd.Function):
    """
    The mean cross-entropy of logits [rows, own classes]. This rank has the classes from
    `start` on, and the other ranks of `group` have the remaining classes. 16-bit
    numbers are computed in 32 bits. The gradient overwrites the memory of the logits,
    unless another object still uses it, such as a variable of the script for the
    DTensor `whole`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        start: int,
        group: Any,
        ignore_index: int,
        whole: weakref.ref[torch.Tensor],
    ) -> torch.Tensor:
        ctx.whole = whole
        wide = torch.promote_types(logits.dtype, torch.float32)
        counts = labels != ignore_index
        place = labels - start
        is_own = counts & (place >= 0) & (place < logits.shape[1])
        place = torch.where(is_own, place, 0)
        rows = max(1, _ELEMENTS // logits.shape[1])
        parts = [part.to(wide).logsumexp(1) for part in logits.split(rows)]
        own = torch.cat(parts)
        most = own.clone()
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        labelled = logits.gather(1, place[:, None])[:, 0].to(wide)
        both = torch.stack([(own - most).exp_(), torch.where(is_own, labelled, 0)])
        dist.all_reduce(both, group=group)
        total = both[0].log_().add_(most)
        count = counts.sum()
        ctx.save_for_backward(logits, total, counts, count, place, is_own)
        return torch.where(counts, total - both[1], 0).sum() / count

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
        logits, total, counts, count, place, is_own = ctx.saved_tensors
        factor = torch.where(counts, grad_outputs[0] / count, 0).to(total.dtype)
        is_alone = ctx.whole() is None and _holders(logits) <= _OWN_HOLDERS
        found = logits if is_alone else torch.empty_like(logits)
        rows = max(1, _ELEMENTS // logits.shape[1])
        for part, own, sums, scale in zip(
            *(each.split(rows) for each in (found, logits, total, factor)), strict=True
        ):
            part.copy_((own - sums[:, None]).exp_().mul_(scale[:, None]))
        less = torch.where(is_own, -factor, 0).to(found.dtype)
        found.scatter_add_(1, place[:, None], less[:, None])
        return found, None, None, None, None, None


_OWN_HOLDERS = 3
"""
The number of references to the memory of logits in the backward: by the saved tensor, by
that which it is unpacked to, and by the object that counts them.
"""


def _holders(tensor: torch.Tensor) -> int:
    """
    Returns the number of tensors and other objects that use the memory of `tensor`.
    """
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore[reportPrivateUsage]
