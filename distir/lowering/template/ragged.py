"""
All-to-all of rows of experts: how many there are is known when the program runs.

Rows are `[shards, groups, places]`, each with the number of its expert, or -1 if it is empty.
Only rows that are not empty are sent and received; the process waits for their numbers.
"""

import torch
import torch.distributed as dist

from .collectives import split


def ragged_all_to_all(
    x, rows, arriving, group, dim, split_dim, run=None, split_run=None
):
    """
    Splits dimension `split_dim` of `x` and gathers `dim`. `rows` say which rows of `x` are
    empty, `arriving` which rows of the result; these are zero.
    """
    if group.size == 1:
        return x
    leaving, sent = _in_order_of_members(rows, group, split_dim, split_run)
    places, received = _in_order_of_members(arriving, group, dim, run)
    packed = x.reshape(-1, x.shape[3]).index_select(0, leaving)
    found = packed.new_empty(len(places), packed.shape[1])
    # As bytes, because not every backend sends every type.
    dist.all_to_all_single(
        found.view(torch.uint8), packed.view(torch.uint8), received, sent, group.handle
    )
    whole = x.new_zeros(arriving.numel(), x.shape[3]).index_copy_(0, places, found)
    return whole.reshape(*arriving.shape, x.shape[3])


def _in_order_of_members(rows, group, dim, run):
    """
    Returns the numbers of the rows that are not empty, those of the first member's shard of a
    dimension first, and how many there are in each shard.
    """
    numbers = torch.arange(rows.numel(), device=rows.device).reshape(rows.shape)
    shards = group.by_number(split(numbers, group.size, dim, run))
    order = torch.stack([shard.reshape(-1) for shard in shards])
    taken = rows.reshape(-1)[order] >= 0
    return order[taken], taken.sum(1).tolist()
