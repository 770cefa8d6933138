"""
Communication among the processes of a group, by torch.distributed.

If a tensor dimension is split over a group in runs of `run` elements, member (i // run)
% size has element i. `run=None` stands for the contiguous split.
"""

from functools import partial

import torch
import torch.distributed as dist

from ..devices import here
from .carriers import carried

# Backends move these types; the others travel as bytes.
_MOVABLE = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.int8,
)


class Group:
    """
    A group of processes, in the order of their positions along mesh axes.

    `ranks` are global ranks in that order. PyTorch orders the members of a process
    group by global rank; `order[i]` is PyTorch's index of the member at position i.
    """

    def __init__(self, ranks, handle):
        self.ranks = tuple(ranks)
        self.handle = handle
        ascending = sorted(self.ranks)
        self.order = tuple(ascending.index(rank) for rank in self.ranks)
        self.size = len(self.ranks)
        self.position = self.ranks.index(dist.get_rank()) if self.size > 1 else 0
        self.number = self.order[self.position]
        self.in_order = self.order == tuple(range(self.size))

    def by_position(self, parts):
        """
        Returns `parts` reordered from the order of PyTorch's member indices to the
        order of positions along the mesh axes.
        """
        return [parts[number] for number in self.order]

    def by_number(self, parts):
        """
        Returns `parts` reordered from the order of positions along the mesh axes to the
        order of PyTorch's member indices.
        """
        return [parts[self.order.index(number)] for number in range(self.size)]


def _packed(x):
    """Returns `x` as a contiguous tensor of a type that backends can send."""
    x = x.contiguous()
    return x if x.dtype in _MOVABLE else x.reshape(-1).view(torch.uint8)


def _unpacked(packed, dtype, shape):
    return packed.view(dtype).reshape(shape)


def split(x, count, dim, run=None, blocks=1):
    """
    Returns the `count` shards of dimension `dim`. The dimension consists of `blocks`
    equal blocks, and each block is split into `count // blocks` shards; the shards of
    the first block come first.
    """
    if blocks > 1:
        own = count // blocks
        parts = x.chunk(blocks, dim)
        return [shard for part in parts for shard in split(part, own, dim, run)]
    if run is None:
        return list(x.chunk(count, dim))
    runs = x.unflatten(dim, (x.shape[dim] // (count * run), count, run))
    return [part.flatten(dim, dim + 1) for part in runs.unbind(dim + 1)]


def join(parts, dim, run=None, blocks=1):
    """
    Returns the tensor whose shards along dimension `dim` are `parts`; the inverse of
    `split`.
    """
    if blocks > 1:
        own = len(parts) // blocks
        found = [parts[i * own : (i + 1) * own] for i in range(blocks)]
        return torch.cat([join(each, dim, run) for each in found], dim)
    if run is None:
        return torch.cat(parts, dim)
    runs = [part.unflatten(dim, (part.shape[dim] // run, run)) for part in parts]
    return torch.stack(runs, dim + 1).flatten(dim, dim + 2)


def coordinate(group):
    """Returns this process's position in the group, as a scalar tensor."""
    return torch.tensor(group.position, device=here())


def keep_shard(x, group, dim, run=None):
    """Returns a copy of this process's shard of the whole tensor `x`."""
    return split(x, group.size, dim, run)[group.position].clone()


class Arriving:
    """
    A tensor in flight. `handles` are the operations that bring the tensor, and `finish`
    then returns it. `read` keeps the memory alive that these operations read.
    """

    def __init__(self, handles, finish, read=None):
        self.handles = handles
        self.finish = finish
        self.read = read

    def wait(self):
        """
        Waits for the tensor and returns it. This works only once, because the object
        does not keep the tensor.
        """
        for handle in self.handles:
            handle.wait()
        finish = self.finish
        self.handles = self.finish = self.read = None
        return finish()


def wait(arriving):
    """
    Waits for the tensor in flight that a `start_` function returned, and returns the
    tensor.
    """
    return arriving.wait()


def start_all_reduce(x, group, reduction, in_place=False):
    """
    Starts to reduce a tensor over the group, and returns the tensor in flight. Works on
    a copy, unless `in_place`.
    """
    if group.size == 1:
        return Arriving([], lambda: x)
    carrier, op, restored = carried(x, reduction)
    if in_place:
        out = carrier.contiguous()
    else:
        out = carrier.clone(memory_format=torch.contiguous_format)
    handle = dist.all_reduce(out, op, group.handle, async_op=True)
    return Arriving([handle], lambda: restored(out))


def start_all_gather(x, group, dim, run=None):
    if group.size == 1:
        return Arriving([], lambda: x)
    packed, dtype, shape = _packed(x), x.dtype, x.shape
    rows = packed.new_empty((group.size, packed.numel()))
    handle = dist.all_gather_single(
        rows.view(-1), packed.view(-1), group.handle, async_op=True
    )

    def finish():
        if dim == 0 and run is None and group.in_order:
            whole = group.size * shape[0], *shape[1:]
            return _unpacked(rows.view(-1), dtype, whole)
        parts = [_unpacked(row, dtype, shape) for row in group.by_position(list(rows))]
        return join(parts, dim, run)

    return Arriving([handle], finish, packed)


def start_reduce_scatter(x, group, dim, reduction, run=None):
    if group.size == 1:
        return Arriving([], lambda: x)
    carrier, op, restored = carried(x, reduction)
    parts = split(carrier, group.size, dim, run)
    shape = parts[0].shape
    if dim == 0 and run is None and group.in_order:
        rows = carrier.contiguous()
    else:
        rows = torch.stack(group.by_number(parts))
    out = rows.new_empty(shape)
    handle = dist.reduce_scatter_single(
        out.view(-1), rows.view(-1), op, group.handle, async_op=True
    )
    return Arriving([handle], lambda: restored(out), rows)


def start_all_to_all(
    x, group, dim, split_dim, run=None, split_run=None, blocks=1, split_blocks=1
):
    """
    Starts to split dimension `split_dim` of a tensor and to gather dimension `dim`.
    Runs and blocks of both dimensions are as in `split`. Returns the tensor in flight.
    """
    if group.size == 1:
        return Arriving([], lambda: x)
    parts = group.by_number(split(x, group.size, split_dim, split_run, split_blocks))
    dtype, shape = x.dtype, parts[0].shape
    sent = _packed(torch.stack(parts)).view(group.size, -1)
    received = torch.empty_like(sent)
    handle = dist.all_to_all_single(received, sent, group=group.handle, async_op=True)

    def finish():
        pieces = [_unpacked(piece, dtype, shape) for piece in received]
        return join(group.by_position(pieces), dim, run, blocks)

    return Arriving([handle], finish, sent)


def all_reduce(x, group, reduction, in_place=False):
    return start_all_reduce(x, group, reduction, in_place).wait()


def all_gather(x, group, dim, run=None):
    return start_all_gather(x, group, dim, run).wait()


def reduce_scatter(x, group, dim, reduction, run=None):
    return start_reduce_scatter(x, group, dim, reduction, run).wait()


def all_to_all(
    x, group, dim, split_dim, run=None, split_run=None, blocks=1, split_blocks=1
):
    return start_all_to_all(
        x, group, dim, split_dim, run, split_run, blocks, split_blocks
    ).wait()


def start_permute(x, group, shift=1):
    """
    Starts to send each process's tensor `shift` positions further, around the ring of
    the group. Returns the tensor in flight.
    """
    if shift % group.size == 0:
        return Arriving([], lambda: x)
    packed = _packed(x)
    received = torch.empty_like(packed)
    target = group.ranks[(group.position + shift) % group.size]
    source = group.ranks[(group.position - shift) % group.size]
    transfers = [
        dist.P2POp(dist.isend, packed, target),
        dist.P2POp(dist.irecv, received, source),
    ]
    # A sent tensor stays in memory until its receiver has it.
    return Arriving(
        dist.batch_isend_irecv(transfers),
        partial(_unpacked, received, x.dtype, x.shape),
        packed,
    )


def permute(x, group, shift=1):
    return start_permute(x, group, shift).wait()


def broadcast(x, group, root):
    """
    Returns the tensor of rank `root`. On other ranks, `x` only gives the shape and
    type.
    """
    if group.size == 1:
        return x
    packed = _packed(x).clone()
    dist.broadcast(packed, root, group.handle)
    return _unpacked(packed, x.dtype, x.shape)


def reduce(x, group, root, reduction):
    """
    Returns the reduced tensor on rank `root`. The result on other ranks has no meaning.
    """
    if group.size == 1:
        return x
    carrier, op, restored = carried(x, reduction)
    out = carrier.clone(memory_format=torch.contiguous_format)
    dist.reduce(out, root, op, group.handle)
    return restored(out)


def gather(x, group, root, dim, run=None):
    """
    Returns the joined shards on rank `root`, and the process's own shard on other
    ranks.
    """
    if group.size == 1:
        return x
    if dist.get_rank() != root:
        send(x, root)
        return x
    shards = [
        x if rank == root else recv(x.shape, x.dtype, rank) for rank in group.ranks
    ]
    return join(shards, dim, run)


def scatter(x, group, root, dim, run=None):
    """Returns this process's shard of the tensor of rank `root`."""
    if group.size == 1:
        return x
    shards = split(x, group.size, dim, run)
    if dist.get_rank() != root:
        return recv(shards[0].shape, x.dtype, root)
    for rank, shard in zip(group.ranks, shards, strict=True):
        if rank != root:
            send(shard, rank)
    return shards[group.position].clone()


def send(x, peer):
    """
    Sends a tensor to the process with rank `peer`, and returns when the tensor may be
    overwritten.
    """
    dist.send(_packed(x), peer)


def recv(shape, dtype, peer):
    """
    Receives a tensor of shape `shape` from the process with rank `peer`, and returns
    it.
    """
    x = torch.empty(shape, dtype=dtype, device=here())
    packed = _packed(x)
    dist.recv(packed, peer)
    return _unpacked(packed, x.dtype, x.shape)


# Sends that may still be in flight, as pairs of a handle and the tensor that it reads.
_sends = []


def start_send(x, peer):
    """
    Starts to send a tensor to the process with rank `peer`. Nothing may write to the
    tensor before `finish_sends`. Tensors between the same two processes arrive in the
    order of their sends and receives.
    """
    _sends[:] = [(work, sent) for work, sent in _sends if not work.is_completed()]
    packed = _packed(x)
    _sends.append((dist.isend(packed, peer), packed))


def finish_sends():
    """Waits until all started sends have arrived."""
    while _sends:
        work, _ = _sends.pop(0)
        work.wait()


def start_recv(shape, dtype, peer):
    """
    Starts to receive a tensor from the process with rank `peer`; `wait` returns the
    tensor.
    """
    x = torch.empty(shape, dtype=dtype, device=here())
    packed = _packed(x)
    return Arriving([dist.irecv(packed, peer)], lambda: _unpacked(packed, dtype, shape))
