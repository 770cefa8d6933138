"""
All-to-all of the rows of experts. The number of rows for each process is known only
when the program runs.

Rows are `[shards, groups, places]`, as in `experts`. Each row has the index of its
expert, or -1 if the row is empty. Processes do not send or receive empty rows. A
process waits for its device to count the rows.
"""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from .collectives import Arriving, split

_library = torch.library.Library("distir_ragged", "FRAGMENT")


def ragged_all_to_all(
    x,
    rows,
    arriving,
    group,
    dim,
    split_dim,
    run=None,
    split_run=None,
    blocks=1,
    split_blocks=1,
):
    """
    Splits dimension `split_dim` of `x` and gathers dimension `dim`. `rows` is -1 for
    each empty row of `x`, and `arriving` is -1 for each empty row of the result. The
    empty rows of the result are zero.
    """
    if group.size == 1:
        return x
    members = _members(
        rows, arriving, group, dim, split_dim, run, split_run, blocks, split_blocks
    )
    return torch.ops.distir_ragged.exchange(
        x, rows, arriving, *members, group.handle.group_name
    )


def start_ragged_all_to_all(
    x,
    rows,
    arriving,
    group,
    dim,
    split_dim,
    run=None,
    split_run=None,
    blocks=1,
    split_blocks=1,
):
    """
    Starts a `ragged_all_to_all`. The rows are counted before this function returns, and
    are sent while the device computes.
    """
    if group.size == 1:
        return Arriving([], lambda: x)
    members = _members(
        rows, arriving, group, dim, split_dim, run, split_run, blocks, split_blocks
    )
    handle, finish, packed = _begun(x, rows, arriving, *members, group.handle, True)
    return Arriving([handle], finish, packed)


def _members(
    rows, arriving, group, dim, split_dim, run, split_run, blocks, split_blocks
):
    """
    Returns, for each member of the group, the indices of the rows that this process may
    send to the member, and of the rows that it may receive from the member.
    """
    return [
        torch.stack(group.by_number([part.reshape(-1) for part in parts]))
        for parts in (
            split(_numbers(rows), group.size, split_dim, split_run, split_blocks),
            split(_numbers(arriving), group.size, dim, run, blocks),
        )
    ]


def _numbers(rows):
    return torch.arange(rows.numel(), device=rows.device).reshape(rows.shape)


def _taken(rows, members):
    """
    Returns the indices of the rows that are not empty, and the number of these rows for
    each member. `members` has a list of rows for each member.
    """
    taken = rows.reshape(-1)[members] >= 0
    return members[taken], taken.sum(1).tolist()


def _begun(x, rows, arriving, leaving, arriving_from, group, is_asynchronous):
    """
    Sends to each member of a process group its rows in `leaving`. Returns a handle to
    wait for if `is_asynchronous`; a function that puts the received rows at
    `arriving_from` and returns the tensor of all rows; and the rows that are sent.
    """
    given, sent = _taken(rows, leaving)
    places, received = _taken(arriving, arriving_from)
    packed = x.reshape(-1, x.shape[3]).index_select(0, given)
    found = packed.new_empty(len(places), packed.shape[1])
    # As bytes, because not every backend sends every type.
    handle = dist.all_to_all_single(
        found.view(torch.uint8),
        packed.view(torch.uint8),
        received,
        sent,
        group,
        async_op=is_asynchronous,
    )

    def finish():
        whole = found.new_zeros(arriving.numel(), found.shape[1])
        whole.index_copy_(0, places, found)
        return whole.reshape(*arriving.shape, found.shape[1])

    return handle, finish, packed


def _exchange(x, rows, arriving, leaving, arriving_from, name):
    """
    Sends to each member its rows in `leaving`, and puts the rows from each member at
    `arriving_from`. Returns the tensor of all rows. `name` is the name of the process
    group.
    """
    group = _resolve_process_group(name)
    _, finish, _ = _begun(x, rows, arriving, leaving, arriving_from, group, False)
    return finish()


if not hasattr(torch.ops.distir_ragged, "exchange"):
    # An op of its own, as the numbers of rows are data that compilers and tensors without
    # values cannot see.
    _library.define(
        "exchange(Tensor x, Tensor rows, Tensor arriving, Tensor leaving, "
        "Tensor arriving_from, str name) -> Tensor"
    )
    _library.impl("exchange", _exchange, "CompositeExplicitAutograd")
    torch.library.register_fake(
        "distir_ragged::exchange",
        lambda x, rows, arriving, *_: x.new_empty(*arriving.shape, x.shape[3]),
        lib=_library,
    )
