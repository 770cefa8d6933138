"""Batches of data for training. Each process reads its own part of each batch."""

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
    Returns the mesh axes, with their sizes, that split the first dimension of all
    arguments in `specs` in the same way, outermost first.

    These axes divide each batch into parts. The samples of a part are neighbours in the
    batch; with micro-batches, they are neighbours in each micro-batch.
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
    """
    Returns the index of the part of each batch that process `rank` gets, and the number
    of parts.
    """
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
    Describes one part of a batch for the argument `spec`. Returns the shape of the
    part, and a copy of `spec` whose layout splits the part further, over all axes that
    are not in `axes`.
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
    One process's part of batches. `specs` are the arguments of the whole program that
    make up a batch, and `takes` the names of the arguments that the process takes.
    """

    specs: tuple
    takes: frozenset
    meshes: dict
    rank: int

    @classmethod
    def of(cls, program, rank):
        """Returns the part of process `rank` of a program."""
        own = {program.ARGUMENTS[i].name for i in program.RANKS[rank].program.arguments}
        specs = [spec for spec in program.ARGUMENTS if spec.role in ROLES]
        names = frozenset(s.name for s in specs if s.name in own)
        return cls(tuple(specs), names, program.MESHES, rank)

    @property
    def axes(self):
        """The mesh axes that divide whole batches into parts, with their sizes."""
        return batch_axes(self.specs, self.meshes)

    @property
    def place(self):
        """The index of this part, and the number of parts."""
        return place_in_batch(self.axes, self.meshes.values(), self.rank)

    @property
    def rows(self):
        """
        The indices, in a whole batch, of the samples that this process takes, in the
        process's order. Raises ProgramError if the arguments do not all have samples as
        their first dimension.
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
        """
        The number of samples in a whole batch. Raises ProgramError if the arguments do
        not all have samples as their first dimension.
        """
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
        Returns this process's arguments of a batch, by name. `values` are the whole
        batch if `whole`, else this process's part of it. `source` names the data in
        messages. Raises ProgramError if the shape or the kind of type of a value is not
        that of its argument.
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
        """
        Returns the tensors of a batch by argument name. A batch is a dictionary, or a
        sequence in the order of the arguments. Raises ProgramError if the names or the
        number of the tensors do not match the arguments.
        """
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
    """
    Raises ProgramError if `value` does not have shape `shape`, or is not of the
    argument's kind: floating-point, boolean or another type.
    """
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
    Batches from arrays by name. An array is one of these: a single batch for all steps;
    batches along an additional first dimension; or samples along the first dimension,
    more than a batch needs. After the last batch, the first batch follows again.
    Memory-mapped arrays stay on the disk, except for this process's parts.
    """

    is_endless = True

    def __init__(self, part, arrays):
        self.part, self.arrays = part, arrays

    @property
    def length(self):
        """The number of batches before the first one is repeated."""
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
        Yields this process's arguments of each batch, from step `first` on, without
        end.
        """
        step = first
        while True:
            yield self.at(step)
            step += 1

    def once(self):
        """Yields this process's arguments of each batch once."""
        return islice(self.batches(), self.length)

    def at(self, step):
        """Returns this process's arguments for a step; the first step is 1."""
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
    Batches from a torch Dataset.

    Every epoch contains every sample once, except for the last samples if they do not
    fill a batch. The seed and the epoch determine the order. Each sample has the same
    place in the same batch for all distributions of a program. A process reads only its
    own samples.
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
        """Returns the indices of all samples in the order of an epoch."""
        generator = torch.Generator().manual_seed(self.seed + epoch)
        return torch.randperm(len(self.dataset), generator=generator)

    def batches(self, first=1):
        """
        Yields this process's arguments of each batch, from step `first` on, without
        end.
        """
        epoch, skipped = divmod(first - 1, self.length)
        while True:
            yield from self._epoch(epoch, skipped)
            epoch, skipped = epoch + 1, 0

    def once(self):
        """
        Yields this process's arguments of each batch once, in the order of the data
        set.
        """
        return self._epoch(0, shuffle=False)


class Stream:
    """
    Batches from an iterable, which yields whole batches or this process's parts. A
    training that begins at a later step skips the batches of the steps before. The
    stream may end.
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
        """Yields this process's arguments of each batch once."""
        return self.batches()

    def batches(self, first=1):
        """Yields this process's arguments of each batch, from step `first` on."""
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
        """Returns this process's arguments of `batch`, an item of the iterable."""
        values = self.part.named(batch, self.source)
        return self.part.cut(values, self.source, whole=self.is_whole)


class _failures:
    """A context that turns errors of a user's code into ProgramError."""

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
    Returns the kind and the text of an error in one line. If the text is the traceback
    of a worker process, only the last error of the traceback is kept.
    """
    if text.startswith("Caught ") and "Traceback (most recent call last)" in text:
        lines = text.rstrip().splitlines()
        calls = [at for at, line in enumerate(lines) if line.startswith("  ")]
        return " ".join(lines[max(calls, default=0) + 1 :] or lines[-1:])
    return " ".join([f"{kind}:", *text.split()])


def _guarded(iterable, source):
    """
    Yields the items of a user's iterable. Raises ProgramError if the iterable raises an
    error.
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
    Returns the batches from the sources in `texts`. A source is `FILE.py:FUNCTION`,
    whose function returns a torch Dataset or an iterable of batches, or
    `NAME=FILE.npy`, a memory-mapped array. `arrays` are tables of further arrays by
    name. Raises ProgramError if data is missing or cannot be read.
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
    """
    Reports that a source of data does not use the worker processes that the user asked
    for.
    """
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
    """
    Imports a Python file, which can import modules from its own folder. Raises
    ProgramError if there is no such file, or if it raises an error.
    """
    if not Path(path).is_file():
        raise runtime.ProgramError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"data_{Path(path).stem}", path)
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code
    # Worker processes import modules from the file's folder, too.
    sys.path.insert(0, str(Path(path).resolve().parent))
    with _failures(path):
        spec.loader.exec_module(code)
    return code
