"""
Parts of tensors that consist of several runs, in PyTorch's distributed checkpoints.

`torch.distributed.checkpoint` takes the part of a DTensor on a rank for one box of the
whole tensor. Parts of strided shards are several boxes: the q, k and v of some heads in a
fused projection. Checkpoints of them would be refused, or hold the wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import (
    _StridedShard,  # pyright: ignore[reportPrivateUsage]
)

from distir.runtime.storage.boxes import box_of, runs

Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The beginning of a box in the whole tensor and in the part, and its sizes."""


@cache
def store_runs_apart() -> None:
    """
    Makes DTensor, in this process, pass each run of a strided shard to checkpoints as a
    chunk of its own, when they are written and when they are read. DTensors whose part is
    one box are not affected.
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
    Returns the boxes of a part; none if it is one box, or does not consist of even parts.
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
    Returns the runs of a dimension of which a part consists: the beginning of each in the
    whole and in the part, and its length. None if a step does not divide it.
    """
    places = torch.arange(size)
    for factor, parts, at in steps:
        if len(places) % (factor * parts):
            return ()
        places = places.reshape(factor, parts, -1)[:, at].reshape(-1)
    return runs(places)
