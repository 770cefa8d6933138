"""
Divides global batches among ranks, and collects the objects that ranks compute for
their parts. Ranks that differ in d have different parts; ranks that differ only in t or
p have the same part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule


@dataclass(frozen=True)
class Place:
    """The place of a rank in a global batch: part `rank` of `count` equal parts."""

    rank: int
    count: int

    @staticmethod
    def of(modules: Iterable[nn.Module], who: str) -> Place:
        """
        Returns the place of this rank in the batches of the parallel modules among
        `modules`. `who` is the class that messages name. Raises DistIRError if
        `modules` has no parallel module, or parallel modules with different places.
        """
        found = {
            Place(m.data_rank, m.data_ranks)
            for m in modules
            if isinstance(m, ParallelModule)
        }
        if len(found) == 1:
            return found.pop()
        if found:
            parts = " and ".join(str(place.count) for place in found)
            raise DistIRError(
                f"{who}: the parallel modules divide a batch into {parts} parts, but a loader "
                f"gives each rank one part; parallelize them with the same degrees of d"
            )
        raise DistIRError(
            f"{who}: there is no parallel module, so that nothing tells which part of a batch "
            f"this rank is to be given; make one with distir.parallelize first, and give it "
            f"before the data, or with it"
        )


class PartOfBatches(BatchSampler):
    """
    A batch sampler of one rank's parts of the global batches. Each batch of `batches`
    is one part; consecutive batches, one per part, form a global batch. If the last
    global batch lacks samples, its samples are shared out evenly: parts then differ by
    at most one sample, and may be empty. If `batches` has `drop_last`, an incomplete
    global batch is dropped.

    A `RandomSampler` without a generator gets its seed from rank 0, which draws the
    seed as PyTorch does. The order of samples is thus the same as in one process.
    """

    def __init__(self, batches: Any, place: Place):
        self.batch_sampler = batches
        self.sampler = getattr(batches, "sampler", None)
        self.batch_size = getattr(batches, "batch_size", None)
        self.drop_last = getattr(batches, "drop_last", False)
        self.num_processes = place.count
        self.split_batches = False
        self._place = place

    def __len__(self) -> int:
        whole, left = divmod(len(self.batch_sampler), self._place.count)
        return whole + (left > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        with _one_order(getattr(self.batch_sampler, "sampler", None)):
            parts = _grouped(map(list, self.batch_sampler), self._place.count)
            for group in parts:
                if len(group) == self._place.count or not self.drop_last:
                    yield _own(group, self._place)

    def set_epoch(self, epoch: int) -> None:
        """
        Passes the number `epoch` to the wrapped batch sampler, if it has a method
        `set_epoch`.
        """
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)


class PartOfStream(IterableDataset[Any]):
    """
    The parts of one rank from a stream of samples. Every rank reads the whole stream,
    in the same order. `size` is the number of samples of a part. The samples left at
    the end are dropped with `drop_last`; otherwise they are shared out evenly, and
    parts differ by at most one sample.
    """

    def __init__(
        self, stream: IterableDataset[Any], size: int, drop_last: bool, place: Place
    ):
        self._stream = stream
        self._size = size
        self.drop_last = drop_last
        self._place = place

    def __iter__(self) -> Iterator[list[Any]]:
        count = self._place.count
        whole = self._size * count
        for group in _grouped(iter(self._stream), whole):
            if len(group) == whole or not self.drop_last:
                own = _own([group], self._place)
                yield own or _Rowless(group[:1])

    def set_epoch(self, epoch: int) -> None:
        """
        Passes the number `epoch` to the stream of samples, if it has a method
        `set_epoch`.
        """
        if hasattr(self._stream, "set_epoch"):
            cast(Any, self._stream).set_epoch(epoch)


class _Rowless(list[Any]):
    """
    A list with one sample, which stands for an empty part. Only the shapes and types of
    the sample are used.
    """


def _grouped(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while group := list(islice(items, size)):
        yield group


def _own(parts: Sequence[list[Any]], place: Place) -> list[Any]:
    """
    Returns this rank's part of a global batch that consists of `parts`. Parts of
    different sizes, or too few parts, are shared out evenly.
    """
    rank, count = place.rank, place.count
    if len(parts) == count and len({len(part) for part in parts}) == 1:
        return parts[rank]
    whole = [sample for part in parts for sample in part]
    size, more = divmod(len(whole), count)
    start = rank * size + min(rank, more)
    return whole[start : start + size + (rank < more)]


@contextlib.contextmanager
def _one_order(sampler: Any) -> Generator[None]:
    """
    Returns a context manager in which `sampler` draws the same random order on every
    rank: the order of rank 0, which is PyTorch's order on one process. Has no effect on
    samplers that draw no order. Every rank must enter the context.
    """
    if not isinstance(sampler, RandomSampler):
        yield
        return
    if hasattr(sampler, "initial_seed"):  # of Accelerate
        seeded = cast(Any, sampler)
        seeded.initial_seed = _of_rank_0(seeded.initial_seed)
        yield
        return
    is_free = sampler.generator is None
    if is_free:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        sampler.generator = torch.Generator().manual_seed(_of_rank_0(seed))
    try:
        yield
    finally:
        if is_free:
            sampler.generator = None


def _of_rank_0(value: int) -> int:
    values = [value]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(values, 0)
    return values[0]


@dataclass(frozen=True)
class Collate:
    """
    Makes a batch from the samples of a part with the function `collate`. For an empty
    part, it collates one sample of `dataset` and removes the row: the tensors then have
    0 rows, and otherwise the right types and shapes.
    """

    collate: Any
    dataset: Any

    def __call__(self, samples: list[Any]) -> Any:
        if samples and not isinstance(samples, _Rowless):
            return self.collate(samples)
        made = self.collate(list(samples) or [self.dataset[0]])
        return tree_map_only(torch.Tensor, lambda t: t[:0] if t.ndim else t, made)


def loader_of_part(loader: DataLoader[Any], place: Place, who: str) -> DataLoader[Any]:
    """
    Returns a loader of this rank's parts of the batches. The batch size of `loader` is
    the size of one part. Raises DistIRError if `loader` does not form batches, or has a
    sampler that already divides the samples over ranks. `who` is the class that
    messages name.
    """
    given = {
        name: getattr(loader, name)
        for name in (
            "num_workers",
            "pin_memory",
            "timeout",
            "worker_init_fn",
            "multiprocessing_context",
            "generator",
            "prefetch_factor",
            "persistent_workers",
            "in_order",
        )
    }
    collate = Collate(loader.collate_fn, loader.dataset)
    if isinstance(loader.dataset, IterableDataset):
        if isinstance(loader.dataset, PartOfStream):
            return loader
        if loader.batch_size is None:
            raise DistIRError(_NO_BATCHES.format(who=who))
        part = PartOfStream(loader.dataset, loader.batch_size, loader.drop_last, place)
        return DataLoader(part, batch_size=None, collate_fn=collate, **given)
    batches = loader.batch_sampler
    if isinstance(batches, PartOfBatches):
        return loader
    if batches is None:
        raise DistIRError(_NO_BATCHES.format(who=who))
    for sampler in (loader.sampler, getattr(batches, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise DistIRError(
                f"{who}: the loader has a DistributedSampler, as `sampler` of a parallel module "
                f"is one, and would divide the samples a second time; leave the sampler out, "
                f"with shuffle=True if it shuffles"
            )
    return DataLoader(
        loader.dataset,
        batch_sampler=PartOfBatches(batches, place),
        collate_fn=collate,
        **given,
    )


_NO_BATCHES = (
    "{who}: a loader with batch_size=None has no batches to divide; give it a batch_size, or a "
    "batch_sampler"
)


def objects_of_all(own: Any, place: Place) -> list[Any]:
    """
    Returns one object per part, in the order of the parts, given this rank's object
    `own`. Every rank must call this function.
    """
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (place.rank, own))
    by_part = dict(reversed(found))
    return [by_part[part] for part in range(place.count)]
