"""
Batches of other shapes than the example with which a module was parallelized. The ranks
exchange the shapes of their parts, and agree on the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from distir.errors import DistIRError
from distir.parallel.padding.lengths import Padding
from distir.parallel.rank_program import RankProgram
from distir.parallel.scripts.parts import rows_of_all

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of the inputs and labels of a global batch, with their names."""


@dataclass(frozen=True)
class Example:
    """
    A global batch whose values do not matter: the arguments of the module, and the
    labels. Only the first `samples` samples differ; all further samples are copies. If
    `samples` is None, there are no copies.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Any = None
    samples: int | None = None


@dataclass(frozen=True)
class Batch:
    """
    The batch of one call.

    - `given`: this rank's part of each input and label, by name;
    - `shapes`: the shapes of the global batch; None for the example's shapes;
    - `samples`: the number of different samples, if the global batch has several copies
      of each because the samples cannot be divided evenly among the ranks; None if it
      has each sample once. The mean over the copies equals the mean over the samples;
    - `own`: the number of samples that the caller passed on this rank; None if every
      rank passed the number that the program takes;
    - `start`: the index of this rank's first sample among the samples of all ranks;
    - `lengths`: the lengths to which inputs and labels are padded, by name;
    - `is_padded`: whether padding has changed the tensors of any rank.
    """

    given: dict[str, torch.Tensor]
    shapes: Shapes | None = None
    samples: int | None = None
    own: int | None = None
    start: int = 0
    lengths: Mapping[str, int] = field(default_factory=dict[str, int])
    is_padded: bool = False

    def example(
        self,
        names: Mapping[int, str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        has_labels: bool,
    ) -> Example:
        """
        Returns a global batch of these shapes, in the structure of a call with `args`
        and `kwargs`. `names` maps the ids of the call's tensors to their names. With
        `has_labels`, the last of `args` are the labels.
        """
        shapes = dict(self.shapes or ())

        def whole(leaf: torch.Tensor) -> torch.Tensor:
            name = names.get(id(leaf))
            if name is None or tuple(leaf.shape) == shapes[name]:
                return leaf
            part = self.given[name].detach()
            grown = torch.cat([part] * (shapes[name][0] // part.shape[0]))
            found = grown.to(leaf.device, leaf.dtype)
            return found.requires_grad_(leaf.requires_grad)

        call: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
            torch.Tensor, whole, (tuple(args), dict(kwargs))
        )
        given, named = call
        if not has_labels:
            return Example(given, named, None, self.samples)
        return Example(given[:-1], named, given[-1], self.samples)

    def rows_of_own(
        self, program: RankProgram, index: int, output: torch.Tensor
    ) -> torch.Tensor:
        """
        Returns the part of `output`, result number `index`, that belongs to the samples
        that the caller passed; ranks may also have computed copies of samples. Raises
        DistIRError, on every rank, if the output combines all samples and some samples
        have more copies than others.
        """
        if self.own is None or self.samples is None:
            return own_rows(program, index, output, self.own)
        if not program.is_of_batch(index):  # each sample has as many copies
            return output
        whole = rows_of_all(output, *program.place_in_batch())[: self.samples]
        return whole[self.start : self.start + self.own]


class SharedShapes:
    """
    Finds the global batch of a call of a program. `micro_batches` must divide each
    rank's part of the batch. Batches may have at most `max_programs` different shapes.
    Sequences are padded by `padding`. Every rank must make one such object, and call
    its methods at the same time as the other ranks.
    """

    def __init__(
        self, micro_batches: int, max_programs: int, padding: Padding | None = None
    ):
        self.micro_batches = micro_batches
        self.padding = padding
        self._max_programs = max_programs
        self._seen: set[Shapes] = set()
        self._compared: set[bool] = set()
        self._group: Any = None
        if dist.get_world_size() > 1 and dist.get_backend() != "gloo":
            # Shapes are numbers of the hosts, which must not wait for the devices.
            self._group = dist.new_group(backend="gloo")

    def of(
        self,
        program: RankProgram,
        given: Mapping[str, torch.Tensor],
        *,
        averages: bool,
        is_announced: bool,
    ) -> Batch:
        """
        Returns the global batch of a call in which the ranks were `given` parts. The
        parts may have different numbers of samples. With `averages`, the loss is a mean
        over samples, and the batch then has every sample equally often. Without
        `averages`, each rank gets its own samples, with its last sample repeated.
        `is_announced` tells that the user announced the shapes. Raises DistIRError, on
        every rank, if shapes do not fit together, or if there are too many different
        shapes.
        """
        specs = [spec for spec in program.all_arguments if spec.name in given]
        tensors = [given[spec.name] for spec in specs]
        rows = self._exchanged(tensors, specs)
        if averages not in self._compared:
            self._compared.add(averages)
            self._check_samples(program, tensors, specs)
        lengths: dict[str, int] = {}
        is_padded = False
        if self.padding is not None:
            lengths = self.padding.of_ranks(specs, program.labels, rows)
            given = self.padded(program, given, lengths)
            for index, spec in enumerate(specs):
                if spec.name in lengths:
                    for shapes in rows:
                        is_padded |= shapes[index][1] < lengths[spec.name]
                        shapes[index][1] = lengths[spec.name]
        found = self._batch(
            program, specs, given, rows, averages=averages, is_announced=is_announced
        )
        return replace(found, lengths=lengths, is_padded=is_padded)

    def padded(
        self,
        program: RankProgram,
        given: Mapping[str, torch.Tensor],
        lengths: Mapping[str, int],
    ) -> dict[str, torch.Tensor]:
        """Returns inputs and labels, by name, with sequences of the given lengths."""
        assert self.padding is not None
        return {
            name: self.padding.padded(
                name, tensor, lengths[name], is_label=name in program.labels
            )
            if name in lengths
            else tensor
            for name, tensor in given.items()
        }

    def _batch(
        self,
        program: RankProgram,
        specs: Sequence[Any],
        given: Mapping[str, torch.Tensor],
        rows: Sequence[Sequence[Sequence[int]]],
        *,
        averages: bool,
        is_announced: bool,
    ) -> Batch:
        """
        Returns the global batch of a call, without padding, for ranks whose tensors
        have the shapes `rows`.
        """
        expected = [program.part_shape(spec) for spec in specs]
        if all(row == expected for row in rows):
            return Batch(dict(given))
        split = [program.is_split_with_batch(spec) for spec in specs]
        if not program.batch_axes() and self.micro_batches > 1:
            sizes = [spec.shape[0] for spec in specs if spec.shape]
            split = [bool(spec.shape) and spec.shape[0] == sizes[0] for spec in specs]
        samples = self._samples(program, specs, split, rows)
        parts = len(samples)
        place = program.place_in_batch()[0]
        own, start = samples[place], sum(samples[:place])
        whole = sum(samples)
        copied = None
        if len(set(samples)) == 1 and own % self.micro_batches == 0:
            found = dict(given)
            size = own
        elif averages:
            total = lcm(whole, parts * self.micro_batches)
            copied, size = whole, total // parts
            found = self._gathered(program, specs, split, given, samples, size)
        else:
            size = -(-max(samples) // self.micro_batches) * self.micro_batches
            found = {
                spec.name: _grown(given[spec.name], size)
                if is_split
                else given[spec.name]
                for spec, is_split in zip(specs, split, strict=True)
            }
        shapes = tuple(
            (spec.name, (size * parts, *shape[1:]) if is_split else tuple(shape))
            for spec, is_split, shape in zip(specs, split, rows[0], strict=True)
        )
        kept = own if any(count != size for count in samples) else None
        # A batch with copies has a program of its own, with which its loss is checked.
        if copied is None and shapes == tuple((s.name, tuple(s.shape)) for s in specs):
            return Batch(found, own=kept, start=start)
        if shapes not in self._seen:
            if parts > 1 and not is_announced and set(samples) == {size}:
                self._check_parts(program, specs, split, shapes)
            self._note(shapes)
        return Batch(found, shapes, copied, kept, start)

    def _check_samples(
        self,
        program: RankProgram,
        tensors: Sequence[torch.Tensor],
        specs: Sequence[Any],
    ) -> None:
        """
        Raises DistIRError, on every rank, if ranks that share a part of the batch were
        given different samples, because they would train on a mixture of both. Compares
        two numbers of each tensor, with a tolerance for rounding.
        """
        count = dist.get_world_size()
        places = [program.place_in_batch(rank)[0] for rank in range(count)]
        if len(set(places)) == count:
            return
        own = torch.stack([_fingerprint(tensor) for tensor in tensors])
        every = [torch.empty_like(own) for _ in range(count)]
        dist.all_gather(every, own, group=self._group)
        for rank, place in enumerate(places):
            first = places.index(place)
            for spec, found, expected in zip(
                specs, every[rank], every[first], strict=True
            ):
                if abs(found[0] - expected[0]) > 1e-3 * max(found[1], expected[1]):
                    raise DistIRError(
                        f"{spec.role} {spec.name!r} has other values on rank {rank} than on "
                        f"rank {first}, and both are given part {place} of the batch; give "
                        f"them the same samples in the same order, as a sampler of the module "
                        f"(sampler) and the classes of distir.trainers do; loaders that "
                        f"Accelerate, transformers.Trainer or Lightning prepare divide samples "
                        f"over all ranks"
                    )

    def _check_parts(
        self,
        program: RankProgram,
        specs: Sequence[Any],
        split: Sequence[bool],
        shapes: Shapes,
    ) -> None:
        """
        Raises DistIRError if every rank was given a whole batch with the example's
        shapes instead of its part of the batch. The global batch would then be larger
        by the number of parts.
        """
        parts = program.place_in_batch()[1]
        for spec, is_split, (_, shape) in zip(specs, split, shapes, strict=True):
            times = parts if is_split else 1
            if shape != (*(n * times for n in spec.shape[:1]), *spec.shape[1:]):
                return
        spec = specs[split.index(True)]
        raise DistIRError(
            f"{spec.role} {spec.name!r} has shape {list(spec.shape)}, but rank "
            f"{program.rank} takes {program.part_shape(spec)}, its part of a batch of "
            f"{spec.shape[0]}; give that (a sampler of the module draws it), or, if batches "
            f"are {parts} times as large, say so with shapes=..."
        )

    def _note(self, shapes: Shapes) -> None:
        """Records shapes. Raises DistIRError if there are too many different shapes."""
        if len(self._seen) + 1 >= self._max_programs:
            shown = ", ".join(f"{name} {list(shape)}" for name, shape in shapes)
            raise DistIRError(
                f"the module was called with {self._max_programs} shapes of the global "
                f"batch, each of which is a program, and now with another one ({shown}); "
                f"pad batches to a few shapes, such as lengths that are multiples of 64 "
                f"(pad_to=64, or pad_to_multiple_of of a tokenizer), or allow more "
                f"(max_programs=...)"
            )
        self._seen.add(shapes)

    def _exchanged(
        self, tensors: Sequence[torch.Tensor], specs: Sequence[Any]
    ) -> list[list[list[int]]]:
        """
        Returns, for each rank, the shapes of its tensors. Raises DistIRError if a
        tensor has a wrong number of dimensions.
        """
        own: list[int] = []
        for tensor, spec in zip(tensors, specs, strict=True):
            rank = len(spec.shape)
            fits = tensor.ndim == rank
            own += tensor.shape if fits else [-1 - tensor.ndim] * max(rank, 1)
            if not rank and fits:
                own.append(0)
        rows = [own]
        if dist.get_world_size() > 1:
            row = torch.tensor(own, device="cpu")
            found = row.new_empty(dist.get_world_size() * len(own))
            dist.all_gather_single(found, row, group=self._group)
            rows = found.view(dist.get_world_size(), len(own)).tolist()
        return [self._shapes(number, row, specs) for number, row in enumerate(rows)]

    def _shapes(
        self, rank: int, row: Sequence[int], specs: Sequence[Any]
    ) -> list[list[int]]:
        shapes: list[list[int]] = []
        at = 0
        for spec in specs:
            count = max(len(spec.shape), 1)
            shape = list(row[at : at + count])
            at += count
            if shape[0] < 0:
                raise DistIRError(
                    f"{spec.role} {spec.name!r} has {-1 - shape[0]} dimensions on rank "
                    f"{rank}, but the module was parallelized with "
                    f"{len(spec.shape)}; give as many"
                )
            shapes.append(shape[: len(spec.shape)])
        return shapes

    def _samples(
        self,
        program: RankProgram,
        specs: Sequence[Any],
        split: Sequence[bool],
        rows: Sequence[Sequence[Sequence[int]]],
    ) -> list[int]:
        """
        Returns the number of samples of each part of the batch. Raises DistIRError if
        shapes do not fit together.
        """
        found: dict[int, int] = {}
        for rank, shapes in enumerate(rows):
            place = program.place_in_batch(rank)[0]
            for spec, is_split, shape, first in zip(
                specs, split, shapes, rows[0], strict=True
            ):
                same = shape[1:] == first[1:] if is_split else shape == first
                if not same:
                    raise DistIRError(
                        f"{spec.role} {spec.name!r} has shape {list(first)} on rank 0, but "
                        f"{list(shape)} on rank {rank}; give all ranks one shape in a step, "
                        f"such as sequences padded to one length"
                    )
                count = found.setdefault(place, shape[0]) if is_split else 0
                if is_split and count != shape[0]:
                    raise DistIRError(
                        f"{spec.role} {spec.name!r} has {shape[0]} samples on rank {rank}, "
                        f"and others of the same part of the batch have {count}; give "
                        f"inputs and labels of the same samples to the ranks of one "
                        f"data_rank"
                    )
        if not found or not any(found.values()):
            return [1]
        return [found[place] for place in sorted(found)]

    def _gathered(
        self,
        program: RankProgram,
        specs: Sequence[Any],
        split: Sequence[bool],
        given: Mapping[str, torch.Tensor],
        samples: Sequence[int],
        size: int,
    ) -> dict[str, torch.Tensor]:
        """
        Returns this rank's `size` samples of the global batch in which all samples have
        the same number of copies.
        """
        place, _ = program.place_in_batch()
        sources = [
            program.place_in_batch(rank)[0] for rank in range(dist.get_world_size())
        ]
        found: dict[str, torch.Tensor] = {}
        for spec, is_split in zip(specs, split, strict=True):
            tensor = given[spec.name]
            if not is_split:
                found[spec.name] = tensor
                continue
            if tensor.requires_grad:
                raise DistIRError(
                    f"{spec.role} {spec.name!r} requires gradients, but the samples of this "
                    f"batch cannot be divided evenly; leave a last batch out "
                    f"(drop_last=True of a DataLoader)"
                )
            padded = _grown(tensor.to(program.device), max(samples)).contiguous()
            every = [torch.empty_like(padded) for _ in sources]
            dist.all_gather(every, padded)
            parts = [every[sources.index(p)][:count] for p, count in enumerate(samples)]
            whole = torch.cat(parts)
            index = torch.arange(place * size, (place + 1) * size, device=whole.device)
            found[spec.name] = whole[index % len(whole)]
        return found


def _grown(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """
    Returns a tensor with its last sample repeated, or with zeros, up to `size` samples.
    """
    missing = size - tensor.shape[0]
    if not missing:
        return tensor
    if not tensor.shape[0]:
        return tensor.new_zeros((size, *tensor.shape[1:]))
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])


def _fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """
    Returns two numbers of a tensor: its sum with random signs, and its norm. The sums
    of two different tensors usually differ by about the norm of their difference.
    """
    own = tensor.detach()
    flat = (torch.view_as_real(own) if own.is_complex() else own).cpu().double()
    flat = flat.flatten().nan_to_num()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, flat.shape, generator=generator).double() * 2 - 1
    return torch.stack([flat @ signs, flat.norm()])


def check_rows(program: RankProgram) -> None:
    """
    Raises DistIRError, on every rank, if the caller of `program` computes the loss from
    a result without a row for each sample. Call this function for a batch whose samples
    cannot be divided evenly among the ranks.
    """
    for index, spec in enumerate(program.all_results):
        if spec.name in program.gradients and not program.is_of_batch(index):
            raise DistIRError(_OF_ALL.format(index))


_OF_ALL = (
    "output {} of the module is of all samples together, and the samples of this batch "
    "cannot be divided evenly among the ranks; leave a last batch out (drop_last=True of a "
    "DataLoader), or give each rank as many"
)


def own_rows(
    program: RankProgram, index: int, output: torch.Tensor, samples: int | None
) -> torch.Tensor:
    """
    Returns the output for this rank's own `samples`, in a batch in which ranks have
    copies of their last samples. None stands for a batch without copies. Raises
    DistIRError, on every rank, for an output that combines all samples.
    """
    if samples is None:
        return output
    if not program.is_of_batch(index):
        raise DistIRError(_OF_ALL.format(index))
    return output[:samples]
