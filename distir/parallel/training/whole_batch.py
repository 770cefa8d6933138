"""Values of the whole batch, for losses that a training script computes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from distir.errors import DistIRError
from distir.parallel.rank_program import RankProgram


class _Gathered(torch.autograd.Function):
    """
    The rows of all ranks of a group, in the order of the group. Ranks may have
    different numbers of rows. The gradient of a rank's own rows is the sum of all
    ranks' gradients for these rows.
    """

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        size, place = dist.get_world_size(group), dist.get_rank(group)
        counts = [torch.zeros(1, dtype=torch.int64, device=own.device)] * size
        counts = [torch.empty_like(count) for count in counts]
        dist.all_gather(counts, counts[0].new_tensor([len(own)]), group=group)
        rows = [int(count) for count in counts]
        ctx.start, ctx.count = sum(rows[:place]), rows[place]
        padded = own.new_zeros((max(rows), *own.shape[1:]))
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:n] for part, n in zip(parts, rows, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
        whole = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.group)
        return whole[ctx.start : ctx.start + ctx.count], None


def whole_batch(program: RankProgram, own: torch.Tensor) -> torch.Tensor:
    """
    Returns the rows of all parts of the batch, in order, given `own`, the rows of this
    rank. The result takes part in autograd. Every rank must call this function. Raises
    DistIRError for a scalar.
    """
    if not own.dim():
        raise DistIRError(
            "whole_batch brings the rows of all ranks together, and a scalar has none; "
            "mean_of_parts gives the mean of a number over the ranks"
        )
    for group in reversed(program.batch_groups()):
        own = _Gathered.apply(own, group)  # pyright: ignore[reportAssignmentType]
    return own


def mean_of_parts(program: RankProgram, value: torch.Tensor) -> torch.Tensor:
    """
    Returns the mean of `value` over the parts of the batch, without gradients. Each
    rank passes the value of its own part; every rank must call this function.
    """
    found = value.detach().clone()
    for group in program.batch_groups():
        dist.all_reduce(found, group=group)
        found /= dist.get_world_size(group)
    return found
