"""Tensors in files. Each rank reads only its own part of a tensor."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch

from distir.errors import DistIRError
from distir.runtime.runtime import local_shape
from distir.runtime.storage.boxes import box_of, boxes


class StoredWeight(Protocol):
    """
    A tensor in a file, with known shape and type, whose values have not been read.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the elements."""
        ...

    def part(self, spec: Any, mesh: Any, rank: int) -> torch.Tensor:
        """
        Reads the part of the argument `spec` that process `rank` of `mesh` holds, and
        returns it on the CPU.
        """
        ...

    def whole(self) -> torch.Tensor:
        """Reads the whole tensor, and returns it on the CPU."""
        ...


class InBoxes(ABC):
    """
    A stored tensor that can be read in parts: any box (a range in each dimension) at a
    time.
    """

    def __init__(self, dtype: torch.dtype, shape: Sequence[int]):
        self.dtype, self.shape = dtype, tuple(shape)

    @abstractmethod
    def read(self, target: torch.Tensor, start: Sequence[int]) -> None:
        """
        Reads the box that begins at `start` and has the shape of `target` into
        `target`, which has this tensor's type.
        """

    def part(self, spec: Any, mesh: Any, rank: int) -> torch.Tensor:
        """
        Reads the part of the argument `spec` that process `rank` of `mesh` holds, and
        returns it on the CPU.
        """
        # Files do not contain the zeros of the padding.
        made = torch.zeros if spec.padded or spec.flattened else torch.empty
        part = made(local_shape(spec, mesh), dtype=self.dtype, device="cpu")
        for start, own, sizes in boxes(spec, mesh, rank):
            self.read(box_of(part, own, sizes), start)
        return part

    def whole(self) -> torch.Tensor:
        """Reads the whole tensor, and returns it on the CPU."""
        found = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self.read(found, [0] * len(self.shape))
        return found


class InFile(InBoxes):
    """A tensor in the file `path`. Its elements begin at byte `begin`."""

    def __init__(
        self, path: Path, dtype: torch.dtype, shape: Sequence[int], begin: int
    ):
        super().__init__(dtype, shape)
        self._path, self._begin = path, begin

    def read(self, target: torch.Tensor, start: Sequence[int]) -> None:
        """
        Reads only the bytes of the box that begins at `start` into `target`. Raises
        DistIRError if the file cannot be read.
        """
        if not target.numel():
            return
        if not target.is_contiguous():
            made = torch.empty(target.shape, dtype=self.dtype, device="cpu")
            self.read(made, start)
            target.copy_(made)
            return
        # Elements of the box that follow each other in the file make up a run.
        run, first = target.element_size(), len(self.shape)
        while first and run == target.element_size() * prod(self.shape[first:]):
            first -= 1
            run *= target.shape[first]
        strides = [
            target.element_size() * prod(self.shape[i + 1 :])
            for i in range(len(self.shape))
        ]
        origin = self._begin + sum(
            at * stride for at, stride in zip(start, strides, strict=True)
        )
        flat: Any = target.reshape(-1).view(torch.uint8).numpy()
        content = memoryview(flat)
        try:
            with self._path.open("rb", buffering=0) as file:
                places = product(*map(range, target.shape[:first]))
                for number, place in enumerate(places):
                    at = sum(i * s for i, s in zip(place, strides, strict=False))
                    own = content[number * run : (number + 1) * run]
                    self._read_run(file.fileno(), own, origin + at)
        except OSError as error:
            raise DistIRError(f"cannot read {self._path}: {error.strerror}") from error

    def _read_run(self, file: int, content: memoryview, begin: int) -> None:
        done = 0
        while done < len(content):
            read = os.preadv(file, [content[done:]], begin + done)
            if not read:
                raise DistIRError(
                    f"{self._path} has become shorter while it was read; copy it again"
                )
            done += read


class InMemory(InBoxes):
    """A tensor in memory."""

    def __init__(self, value: torch.Tensor):
        super().__init__(value.dtype, value.shape)
        self._value = value

    def read(self, target: torch.Tensor, start: Sequence[int]) -> None:
        """Copies the box that begins at `start` into `target`."""
        target.copy_(box_of(self._value, start, target.shape))


class Concatenated(InBoxes):
    """The concatenation of tensors along dimension `dim`."""

    def __init__(self, parts: Sequence[InBoxes], dim: int):
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        super().__init__(parts[0].dtype, shape)
        self._parts, self._dim = parts, dim

    def read(self, target: torch.Tensor, start: Sequence[int]) -> None:
        """
        Reads the box that begins at `start` into `target`, from all parts that it
        overlaps.
        """
        dim, offset = self._dim, 0
        begin, end = start[dim], start[dim] + target.shape[dim]
        for part in self._parts:
            size = part.shape[dim]
            first, last = max(begin, offset), min(end, offset + size)
            if first < last:
                own = target.narrow(dim, first - begin, last - first)
                part.read(own, [*start[:dim], first - offset, *start[dim + 1 :]])
            offset += size


class Stacked(InBoxes):
    """Tensors of one shape, stacked along a new dimension `dim`."""

    def __init__(self, parts: Sequence[InBoxes], dim: int):
        shape = list(parts[0].shape)
        shape.insert(dim, len(parts))
        super().__init__(parts[0].dtype, shape)
        self._parts, self._dim = parts, dim

    def read(self, target: torch.Tensor, start: Sequence[int]) -> None:
        """
        Reads the box that begins at `start` into `target`, from all parts that it
        overlaps.
        """
        rest = [*start[: self._dim], *start[self._dim + 1 :]]
        for place, own in enumerate(target.unbind(self._dim)):
            self._parts[start[self._dim] + place].read(own, rest)
