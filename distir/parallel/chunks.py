"""
Lets PyTorch's distributed checkpoints hold tensors whose local part consists of several
runs.

`torch.distributed.checkpoint` treats the local part of a DTensor as one box of the
whole tensor. The local part of a strided shard consists of several boxes, such as the
q, k and v of a device's heads in a fused projection. Without this module, PyTorch would
refuse checkpoints of such tensors, or write wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import (
    _StridedShard,  # pyright: ignore[reportPrivateUsage]
)

from distir.runtime.storage.boxes import box_of, runs

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
    )
    from torch.distributed.checkpoint.planner import WriteItem

# Scripts without checkpoints do without PyTorch's modules for them: a tenth of a second.

Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""
A box of a tensor: where it begins in the whole tensor, where it begins in the local
part, and its sizes.
"""


@cache
def store_runs_apart() -> None:
    """
    Changes DTensor, in this process, so that checkpoints write and read each run of a
    strided shard as a separate chunk. DTensors whose local part is one box behave as
    before.
    """
    _replace("__create_write_items__", _write_items)
    _replace("__create_chunk_list__", _chunk_list)
    _replace("__get_tensor_shard__", _part)


def _replace(name: str, ours: Callable[..., Any]) -> None:
    theirs = getattr(DTensor, name)

    def method(self: DTensor, *args: Any) -> Any:
        boxes = _boxes_of(self)
        return theirs(self, *args) if len(boxes) < 2 else ours(self, boxes, *args)

    setattr(DTensor, name, method)


def _write_items(
    tensor: DTensor, boxes: Sequence[Box], fqn: str, _: object
) -> list[WriteItem]:
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import (
        TensorWriteData,
        WriteItem,
        WriteItemType,
    )

    properties = TensorProperties.create_from_tensor(tensor.to_local())
    return [
        WriteItem(
            index=MetadataIndex(fqn, chunk.offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk, properties, tensor.size()),
        )
        for chunk in _chunk_list(tensor, boxes)
    ]


def _chunk_list(_: DTensor, boxes: Sequence[Box]) -> list[ChunkStorageMetadata]:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [
        ChunkStorageMetadata(torch.Size(start), torch.Size(sizes))
        for start, _, sizes in boxes
    ]


def _part(tensor: DTensor, boxes: Sequence[Box], index: MetadataIndex) -> torch.Tensor:
    local = tensor.to_local()
    for start, own, sizes in boxes:
        if index.offset is not None and tuple(index.offset) == start:
            return box_of(local, own, sizes)
    raise ValueError(
        f"{index.fqn}: this rank holds nothing that begins at {index.offset}"
    )


def _boxes_of(tensor: DTensor) -> tuple[Box, ...]:
    """
    Returns the boxes that make up the local part of a DTensor. The result is empty if
    no strided shard splits the tensor, or if the tensor is not split evenly.
    """
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    place = mesh.get_coordinate()
    if place is None or not any(
        isinstance(p, _StridedShard) for p in tensor.placements
    ):
        return ()
    steps: list[list[tuple[int, int, int]]] = [[] for _ in shape]
    for placement, parts, at in zip(tensor.placements, mesh.shape, place, strict=True):
        if isinstance(placement, _StridedShard):
            steps[placement.dim].append((int(placement.split_factor), parts, at))
        elif isinstance(placement, Shard):
            steps[placement.dim].append((1, parts, at))
    all_runs = [_runs(size, tuple(own)) for size, own in zip(shape, steps, strict=True)]
    return tuple(
        (
            tuple(run[0] for run in box),
            tuple(run[1] for run in box),
            tuple(run[2] for run in box),
        )
        for box in product(*all_runs)
    )


@cache
def _runs(
    size: int, steps: tuple[tuple[int, int, int], ...]
) -> tuple[tuple[int, int, int], ...]:
    """
    Returns the runs that make up the local part of a dimension of `size` elements: for
    each run, its beginning in the whole dimension, its beginning in the part, and its
    length. `steps` are the splits in order, each a split factor, a number of parts, and
    the index of the part. Returns an empty tuple if a step does not divide the
    dimension evenly.
    """
    places = torch.arange(size)
    for factor, parts, at in steps:
        if len(places) % (factor * parts):
            return ()
        places = places.reshape(factor, parts, -1)[:, at].reshape(-1)
    return runs(places)
