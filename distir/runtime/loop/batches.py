"""Batches of a training; each process reads its part of them."""

import importlib.util
import inspect
import sys
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from .. import runtime

ROLES = ("input", "label")
"""The roles of arguments that make up a batch."""


def batch_axes(specs, meshes):
    """
    Returns the mesh axes that split the first dimension of all of these arguments alike,
    the outermost first, with their sizes. These axes divide batches into parts. The samples
    of a part are neighbours, or with micro-batches some neighbours of each micro-batch.
    """
    firsts = [spec.split[0] if spec.split else () for spec in specs]
    found = {}
    for own in zip(*firsts, strict=False):
        names = [name for name, _ in own]
        sizes = {meshes[s.mesh].axes[n] for s, n in zip(specs, names, strict=True)}
        if len(set(own)) > 1 or len(sizes) > 1:
            break
        found[names[0]] = sizes.pop()
    return found


def place_in_batch(axes, meshes, rank):
    """Returns which part of the batch a process gets, and of how many."""
    place = 0
    for mesh in meshes:
        if rank in mesh.ranks:
            own = mesh.coordinates()[mesh.ranks.index(rank)]
            for name, size in axes.items():
                place = place * size + own.get(name, 0)
            break
    return place, prod(axes.values())


def share(spec, axes):
    """
    Returns the shape of the part of a batch for an argument, and the argument as the rest
    of its layout splits this part.
    """
    shape, others = list(spec.shape), []
    for dim, split in enumerate(spec.split):
        data = [name for name, _ in split if dim == 0 and name in axes]
        shape[dim] //= prod(axes[name] for name in data)
        others.append(tuple(s for s in split if s[0] not in data))
    return shape, replace(spec, split=tuple(others))


@dataclass(frozen=True)
class BatchPart:
    """
    What one process takes of batches: `specs` are the arguments of the whole program that
    make up a batch, `takes` those that the process takes.
    """

    specs: tuple
    takes: frozenset
    meshes: dict
    rank: int

    @classmethod
    def of(cls, program, rank):
        """Returns the part of a process of a program."""
        own = {program.ARGUMENTS[i].name for i in program.RANKS[rank].program.arguments}
        specs = [spec for spec in program.ARGUMENTS if spec.role in ROLES]
        names = frozenset(s.name for s in specs if s.name in own)
        return cls(tuple(specs), names, program.MESHES, rank)

    @property
    def axes(self):
        """Returns the axes that divide whole batches into parts."""
        return batch_axes(self.specs, self.meshes)

    @property
    def place(self):
        """Returns which part this is, and of how many."""
        return place_in_batch(self.axes, self.meshes.values(), self.rank)

    @property
    def rows(self):
        """
        Returns where in a whole batch the samples are of which this process takes
        something, in its order. Raises ProgramError.
        """
        spec = next(s for s in self.specs if s.name in self.takes)
        numbers, axes = torch.arange(self.samples), self.axes
        by_axes = tuple(s for s in spec.split[0] if s[0] in axes) if spec.split else ()
        own = runtime.Tensor(
            spec.name, numbers.dtype, tuple(numbers.shape), spec.mesh, (by_axes,)
        )
        return runtime.shard(numbers, own, self.meshes.get(spec.mesh), self.rank)

    @property
    def samples(self):
        """Returns how many samples a whole batch has. Raises ProgramError."""
        sizes = {spec.shape[0] if spec.shape else None for spec in self.specs}
        if len(sizes) != 1 or None in sizes:
            names = ", ".join(f"{s.name!r} {list(s.shape)}" for s in self.specs)
            raise runtime.ProgramError(
                f"the inputs and labels of the program do not have samples as their first "
                f"dimension alike ({names}), so that they cannot come from a data set; "
                f"give an iterable of whole batches"
            )
        return sizes.pop()

    def cut(self, values, source, *, whole):
        """
        Returns this process's arguments of a batch, by name. `values` hold the whole batch
        (`whole`) or this process's part; `source` names it in messages. Raises
        ProgramError.
        """
        axes = {} if whole else self.axes
        found = {}
        for spec in self.specs:
            if spec.name in self.takes:
                shape, rest = share(spec, axes)
                value = values[spec.name]
                _check(spec, value, shape, source)
                mesh = self.meshes.get(spec.mesh)
                part = runtime.shard(value, rest, mesh, self.rank)
                if part.numel() < value.numel():
                    part = part.clone()  # a view would keep all of the value in memory
                found[spec.name] = part.to(spec.dtype).contiguous()
        return found

    def named(self, batch, source):
        """Returns the tensors of a batch by the names of arguments. Raises ProgramError."""
        names = [spec.name for spec in self.specs]
        if isinstance(batch, dict):
            given = batch
        else:
            parts = list(batch) if isinstance(batch, list | tuple) else [batch]
            if len(parts) != len(names):
                raise runtime.ProgramError(
                    f"a batch of {source} has {len(parts)} tensors, but the program takes "
                    f"{len(names)}: {', '.join(names)}; give these in this order, or a "
                    f"dictionary with their names"
                )
            given = dict(zip(names, parts, strict=True))
        if set(given) != set(names):
            raise runtime.ProgramError(
                f"a batch of {source} has {', '.join(map(str, given))}, but the program "
                f"takes {', '.join(names)}"
            )
        return {name: torch.as_tensor(given[name]) for name in names}


def _check(spec, value, shape, source):
    """Raises ProgramError if a value is not of this shape or not of the argument's kind."""
    if list(value.shape) != list(shape):
        raise runtime.ProgramError(
            f"{source} gives {spec.role} {spec.name!r} as {list(value.shape)}, but this "
            f"process takes {list(shape)} of the program's {list(spec.shape)}; give "
            f"batches of that size, or make the program with another batch"
        )
    kinds = [
        (dtype.is_floating_point, dtype == torch.bool)
        for dtype in (value.dtype, spec.dtype)
    ]
    if kinds[0] != kinds[1]:
        raise runtime.ProgramError(
            f"{source} gives {spec.role} {spec.name!r} as {value.dtype}, but the program "
            f"takes {spec.dtype}"
        )


class Arrays:
    """
    Batches from arrays by name. An array holds one batch for all steps, or has one more
    dimension in front, of batches, or holds more samples than a batch, as consecutive rows.
    After the last batch they start over. Memory-mapped arrays stay on the disk, except for
    what a process takes.
    """

    is_endless = True

    def __init__(self, part, arrays):
        self.part, self.arrays = part, arrays

    @property
    def length(self):
        """Returns how many batches there are before they start over."""
        given = [s for s in self.part.specs if s.name in self.arrays]
        return max(
            (self._count(spec, self.arrays[spec.name]) for spec in given), default=1
        )

    @staticmethod
    def _count(spec, value):
        if value.ndim > len(spec.shape):
            return len(value)
        return max(len(value) // spec.shape[0], 1) if spec.shape else 1

    def batches(self, first=1):
        """
        Yields this process's arguments of each batch, from that step on, without an end.
        """
        step = first
        while True:
            yield self.at(step)
            step += 1

    def once(self):
        """Yields each batch once."""
        return islice(self.batches(), self.length)

    def at(self, step):
        """Returns the batch of a step; the first step is 1."""
        values = {}
        for spec in self.part.specs:
            value = runtime.found(spec, [self.arrays])
            at = (step - 1) % self._count(spec, value)
            if value.ndim > len(spec.shape):
                value = value[at]
            elif spec.shape and len(value) > spec.shape[0]:
                value = value[at * spec.shape[0] : (at + 1) * spec.shape[0]]
            values[spec.name] = value
        return self.part.cut(values, "the data", whole=True)


class Samples:
    """
    Batches from a torch Dataset. Every epoch has every sample once, except for the last
    ones that do not fill a batch, in an order that follows from the seed and the epoch. All
    distributions of a program get the same samples at the same places of each batch. A
    process reads its own samples alone.
    """

    is_endless = True

    def __init__(self, part, dataset, source, seed, workers):
        self.part, self.dataset, self.source = part, dataset, source
        self.seed, self.workers = seed, workers
        self.length = len(dataset) // part.samples
        if not self.length:
            raise runtime.ProgramError(
                f"{source} has {len(dataset)} samples, which do not make a batch of "
                f"{part.samples}"
            )

    def _epoch(self, number, skipped=0, shuffle=True):
        whole = self.part.samples
        order = self._order(number) if shuffle else torch.arange(len(self.dataset))
        rows = self.part.rows
        own = (
            order[at * whole : (at + 1) * whole][rows].tolist()
            for at in range(skipped, self.length)
        )
        loader = DataLoader(self.dataset, batch_sampler=own, num_workers=self.workers)
        for batch in _guarded(loader, self.source):
            values = self.part.named(batch, self.source)
            yield self.part.cut(values, self.source, whole=False)

    def _order(self, epoch):
        """Returns the numbers of all samples in the order of an epoch."""
        generator = torch.Generator().manual_seed(self.seed + epoch)
        return torch.randperm(len(self.dataset), generator=generator)

    def batches(self, first=1):
        """
        Yields this process's arguments of each batch, from that step on, without an end.
        """
        epoch, skipped = divmod(first - 1, self.length)
        while True:
            yield from self._epoch(epoch, skipped)
            epoch, skipped = epoch + 1, 0

    def once(self):
        """Yields each batch once, in the order of the data set."""
        return self._epoch(0, shuffle=False)


class Stream:
    """
    Batches as an iterable gives them: whole ones, or this process's parts. Those of the
    steps before the first are skipped. It may end.
    """

    is_endless = False

    def __init__(self, part, make, source, workers):
        self.part, self.source, self.workers = part, source, workers
        parameters = [
            p
            for p in inspect.signature(make).parameters.values()
            if p.default is p.empty and p.kind is not p.VAR_KEYWORD
        ]
        self.is_whole = not parameters
        self.make = make if self.is_whole else lambda: make(*part.place)

    def once(self):
        """Yields each batch once."""
        return self.batches()

    def batches(self, first=1):
        """Yields this process's arguments of each batch, from that step on."""
        with _failures(self.source):
            made = self.make()
        if isinstance(made, IterableDataset):
            size = self.part.samples // (1 if self.is_whole else self.part.place[1])
            made = DataLoader(made, size, num_workers=self.workers, drop_last=True)
        elif self.workers:
            _tell_of_idle_workers(self.source)
            self.workers = 0  # it is said once
        given = islice(_guarded(made, self.source), first - 1, None)
        # Not a loop: its variable would hold a whole batch while its part is worked on.
        yield from map(self._own, given)

    def _own(self, batch):
        """Returns this process's arguments of a batch that the iterable gives."""
        values = self.part.named(batch, self.source)
        return self.part.cut(values, self.source, whole=self.is_whole)


class _failures:
    """Raises ProgramError for errors that a user's code, called inside, raises."""

    def __init__(self, source):
        self.source = source

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        is_theirs = isinstance(error, (Exception, SystemExit))
        if is_theirs and not isinstance(error, runtime.ProgramError):
            raise runtime.ProgramError(
                f"{self.source} raises {_paragraph(kind.__name__, str(error))}"
            ) from error


def _paragraph(kind, text):
    """
    Returns an error and its message in one line. What a worker process raises comes with
    its traceback as the message, of which the error at the end says what is wrong.
    """
    if text.startswith("Caught ") and "Traceback (most recent call last)" in text:
        lines = text.rstrip().splitlines()
        calls = [at for at, line in enumerate(lines) if line.startswith("  ")]
        return " ".join(lines[max(calls, default=0) + 1 :] or lines[-1:])
    return " ".join([f"{kind}:", *text.split()])


def _guarded(iterable, source):
    """
    Yields the elements of a user's iterable. Raises ProgramError for errors that it raises.
    """
    with _failures(source):
        iterator = iter(iterable)
    while True:
        with _failures(source):
            held = list(islice(iterator, 1))
        if not held:
            return
        yield held.pop()  # so that the batch is not kept until the next one


def read(part, texts, arrays=(), seed=0, workers=0):
    """
    Returns the batches that these texts name: `FILE.py:FUNCTION`, which returns a torch
    Dataset or an iterable of batches, or `NAME=FILE.npy`, arrays that are memory-mapped.
    `arrays` are further ones, by name. Raises ProgramError.
    """
    known = [spec.name for spec in part.specs]
    mapped = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            return _from_code(part, text, seed, workers)
        if name not in known:
            raise runtime.ProgramError(
                f"--data {text}: the program has no input or label {name!r}; it takes "
                f"{', '.join(known)}"
            )
        mapped[name] = _memory_mapped(path)
    if workers and texts:
        _tell_of_idle_workers(" ".join(texts))
    given = {
        spec.name: runtime.found(spec, [mapped, *arrays])
        for spec in part.specs
        if spec.name in part.takes or spec.name in mapped
    }
    return Arrays(
        replace(part, specs=tuple(s for s in part.specs if s.name in given)), given
    )


def _tell_of_idle_workers(source):
    """Says that a source has no use for worker processes."""
    runtime.report(
        f"note: --data-workers has no effect on {source}, which each rank reads by itself: "
        f"workers load the samples of a torch Dataset; leave it out, or give a Dataset"
    )


def _memory_mapped(path):
    try:
        import numpy

        return torch.from_numpy(numpy.load(path, mmap_mode="c"))
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise runtime.ProgramError(
            f"cannot read the array of {path}: {error}"
        ) from error


def _from_code(part, text, seed, workers):
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise runtime.ProgramError(
            f"--data {text} is neither FILE.py:FUNCTION nor NAME=FILE.npy"
        )
    function = getattr(_code(path), name, None)
    if not callable(function):
        raise runtime.ProgramError(f"{path} has no function {name!r}")
    stream = Stream(part, function, text, workers)
    if not stream.is_whole:
        return stream
    with _failures(text):
        made = function()
    if isinstance(made, Dataset) and not isinstance(made, IterableDataset):
        return Samples(part, made, text, seed, workers)
    first = [made]  # is not made twice
    stream.make = lambda: first.pop() if first else function()
    return stream


def _code(path):
    """Imports a Python file, which can import what lies beside it. Raises ProgramError."""
    if not Path(path).is_file():
        raise runtime.ProgramError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"data_{Path(path).stem}", path)
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code
    # Worker processes look for what lies beside it too.
    sys.path.insert(0, str(Path(path).resolve().parent))
    with _failures(path):
        spec.loader.exec_module(code)
    return code
