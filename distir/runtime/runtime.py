"""
Runs one process of a distributed program: its process groups, arguments and results.
"""

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from . import devices
from .communication import collectives, flattening, meeting

KEPT_ROLES = ("parameter", "state")
"""The roles of arguments that checkpoints contain."""


class ProgramError(Exception):
    """Raised if the program cannot run. The message gives the reason."""


@dataclass(frozen=True)
class Tensor:
    """
    An argument or result of a program.

    - `shape`: its global shape;
    - `mesh`: the mesh of its layout; without a mesh, process 0 has the whole tensor;
    - `split`: for each dimension, the mesh axes that split it, with run lengths;
    - `partial`: mesh axes over which the processes have terms of a reduction, with the
      reduction;
    - `updates`: the argument that a result replaces in the next training step;
    - `of`: the parameter that a state or gradient belongs to;
    - `gradient_of`: the result whose gradient an argument is;
    - `initial`: the start value in a training, if no file contains one;
    - `counter`: whether the argument counts steps;
    - `setting`: for an argument of role "setting", which is a number, the
      hyper-parameter of the optimizer; `default`: the value of the setting if the user
      gives none;
    - `repacked`: if the tensor consists of other tensors, the dimension along which
      they are joined, and their names and sizes;
    - `padded`: the shape to which processes fill the tensor up with zeros; `runs`: if
      elements and zeros alternate in one dimension, the lengths of these runs;
    - `flattened`: the length after `flattening.flatten`, and its splits; `split` then
      refers to the flattened tensor;
    - `loss_scale`: the kind of state of loss scaling, if the tensor is one;
    - `host`: whether the tensor stays in the host's memory;
    - `feeds`: the values that generation passes to an input: `tokens`, `padding`,
      `positions` or `pages`;
    - `limit`: the largest number of tokens of a sequence;
    - `pages`: for the table of pages of a cache, the number of pools, of the pages of
      each pool, and of the tokens of a page;
    - `start`: the token with which the decoder of an encoder-decoder begins.
    """

    name: str
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] | None = None
    mesh: str | None = None
    split: tuple = ()
    partial: tuple = ()
    role: str = ""
    updates: str = ""
    of: str = ""
    gradient_of: str = ""
    initial: str = ""
    repacked: tuple = ()
    padded: tuple = ()
    runs: tuple = ()
    flattened: tuple = ()
    setting: str = ""
    default: float | None = None
    counter: bool = False
    loss_scale: str = ""
    host: bool = False
    feeds: str = ""
    limit: int = 0
    pages: tuple = ()
    start: int | None = None

    def parts(self):
        """Yields the whole tensors that make up a repacked tensor."""
        dim, parts, _ = self.repacked
        for name, size in parts:
            shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
            whole = replace(self, mesh=None, split=(), padded=(), runs=(), flattened=())
            yield replace(whole, name=name, shape=shape, repacked=())

    @property
    def whole_shape(self):
        """The shape with padding, before flattening."""
        return self.padded or self.shape


@dataclass(frozen=True)
class MeshSpec:
    """
    Named axes over an ordered list of ranks, with the last axis varying fastest.
    `groups` are the combinations of axes over which the program communicates.
    """

    axes: dict[str, int]
    ranks: list[int]
    groups: list[tuple[str, ...]]

    def coordinates(self):
        """Returns the coordinates of each rank by axis, in the order of `ranks`."""
        return [
            dict(zip(self.axes, c, strict=True))
            for c in product(*(range(n) for n in self.axes.values()))
        ]

    def members(self, axes, rank):
        """
        Returns the ranks that differ from `rank` only along `axes`. The first axis
        varies slowest.
        """
        places = self.coordinates()
        own = places[self.ranks.index(rank)]
        return [
            self.ranks[places.index({**own, **dict(zip(axes, c, strict=True))})]
            for c in product(*(range(self.axes[a]) for a in axes))
        ]


@dataclass(frozen=True)
class Rank:
    """
    The program of one process: its class, and the indices of processes that the class
    uses but that differ between the processes of that class.
    """

    program: type
    numbers: tuple[int, ...] = ()


class ProcessMesh:
    """
    A mesh in a running process. Every process must create all meshes, in the same
    order.
    """

    def __init__(self, spec, device):
        self.spec = spec
        self._groups = {}
        rank = dist.get_rank()
        self.device_mesh = None
        if spec.axes and len(spec.ranks) > 1:
            ranks = torch.tensor(spec.ranks, device="cpu").reshape(
                tuple(spec.axes.values())
            )
            self.device_mesh = DeviceMesh(
                device, ranks, mesh_dim_names=tuple(spec.axes)
            )
        for axes in spec.groups:
            self._groups[axes] = self._make(axes, rank)

    def _make(self, axes, rank):
        here = rank in self.spec.ranks
        if len(axes) == 1 and self.device_mesh is not None:
            handle = self.device_mesh.get_group(axes[0]) if here else None
        else:  # every process takes part in making every group
            handle = None
            for members in self._all_groups(axes):
                made = dist.new_group(members)
                if rank in members:
                    handle = made
        if not here:
            return None
        return collectives.Group(self.spec.members(axes, rank), handle)

    def _all_groups(self, axes):
        found = [self.spec.members(axes, rank) for rank in self.spec.ranks]
        return [
            g for i, g in enumerate(found) if sorted(g) not in map(sorted, found[:i])
        ]

    def group(self, *axes):
        """
        Returns the group of processes that differ from this process only along `axes`.
        """
        return self._groups[axes]


def shard(value, spec, mesh, rank):
    """Returns the part of the whole tensor `value` on process `rank` of the mesh."""
    if spec.padded:
        value = flattening.pad(value, spec)
    if spec.flattened:
        value = flattening.flatten(value, *spec.flattened)
    if mesh is None:
        return value
    place = mesh.coordinates()[mesh.ranks.index(rank)]
    for dim, axes in enumerate(spec.split):
        for axis, run in axes:
            parts = collectives.split(value, mesh.axes[axis], dim, run)
            value = parts[place[axis]]
    if any(reduction == "sum" and place[axis] for axis, reduction in spec.partial):
        value = torch.zeros_like(value)
    return value


def local_shape(spec, mesh):
    """Returns the shape of the part of the tensor `spec` that each process has."""
    shape = spec.whole_shape
    if spec.flattened:
        length, splits = spec.flattened
        shape = (length, *(parts for _, parts, _ in splits))
    if mesh is None or not spec.split:
        return shape
    return tuple(
        size // prod(mesh.axes[axis] for axis, _ in axes)
        for size, axes in zip(shape, spec.split, strict=True)
    )


def assemble(parts, spec, mesh):
    """
    Returns the whole tensor from `parts`, the parts of ranks of a mesh; the inverse of
    `shard`.
    """
    held = {
        tuple(place.values()): parts[rank]
        for rank, place in zip(mesh.ranks, mesh.coordinates(), strict=True)
        if rank in parts
    }
    combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}

    def merge(axis, how):
        """
        Joins the parts that differ only along `axis`, with the function `how`. The
        joined part has coordinate 0 on this axis.
        """
        at = list(mesh.axes).index(axis)
        rows = {}
        for place in sorted(held):
            rows.setdefault((*place[:at], 0, *place[at + 1 :]), []).append(held[place])
        held.clear()
        held.update({place: how(row) for place, row in rows.items()})

    for axis, reduction in spec.partial:

        def reduced(row, reduction=reduction):
            total = row[0]
            for part in row[1:]:
                total = combine[reduction](total, part)
            return total

        merge(axis, reduced)
    for dim in range(len(spec.split)):
        for axis, run in reversed(spec.split[dim]):
            merge(axis, lambda row, d=dim, r=run: collectives.join(row, d, r))
    (value,) = held.values()
    if spec.flattened:
        value = flattening.unflatten(value, spec.whole_shape, spec.flattened[1])
    return flattening.cut(value, spec) if spec.padded else value


def holders(spec, mesh):
    """
    Returns the ranks whose parts make up a whole tensor: one rank of each set of
    replicas.
    """
    needed = {axis for axes in spec.split for axis, _ in axes}
    needed |= {axis for axis, _ in spec.partial}
    return [
        rank
        for rank, place in zip(mesh.ranks, mesh.coordinates(), strict=True)
        if not any(at for axis, at in place.items() if axis not in needed)
    ]


def holds(spec, source):
    """
    Whether `source` contains an argument, or all tensors that the argument consists of.
    """
    if spec.name in source:
        return True
    return bool(spec.repacked) and all(p.name in source for p in spec.parts())


def joined(spec, value_of):
    """
    Returns a whole repacked tensor. `value_of` returns the value of each tensor that it
    consists of.
    """
    dim, _, groups = spec.repacked
    values = [value_of(part) for part in spec.parts()]
    if groups == 1:
        return torch.cat(values, dim)
    pieces = [value.unflatten(dim, (groups, -1)) for value in values]
    return torch.cat(pieces, dim + 1).flatten(dim, dim + 1)


def _whole(value):
    """
    Returns the tensor `value`, after reading it if it is a tensor in a checkpoint.
    """
    return value if isinstance(value, torch.Tensor) else value.whole()


def found(spec, sources):
    """
    Returns the whole value of an argument from the first source that contains it: a
    tensor, or a tensor in a checkpoint that has not been read yet (`stored_tensors`).
    Raises ProgramError if no source contains it.
    """
    for source in sources:
        if spec.name in source:
            return source[spec.name]
        if holds(spec, source):
            return joined(spec, lambda part, own=source: _whole(own[part.name]))
    raise ProgramError(
        f"no value for {spec.role or 'argument'} {spec.name!r}: it is neither in the "
        f"inputs nor in the weights"
    )


def argument(spec, mesh, rank, sources):
    """
    Returns this process's part of an argument, from the first source that contains the
    argument. Raises ProgramError if no source contains it, or if the value has another
    shape or type than the argument.
    """
    value = found(spec, sources)
    if spec.shape is not None and tuple(value.shape) != spec.shape:
        raise ProgramError(
            f"{spec.role or 'argument'} {spec.name!r} has shape {tuple(value.shape)}, "
            f"expected {spec.shape}"
        )
    if spec.dtype is not None and value.dtype != spec.dtype:
        raise ProgramError(
            f"{spec.role or 'argument'} {spec.name!r} has type {value.dtype}, "
            f"expected {spec.dtype}"
        )
    if not isinstance(value, torch.Tensor):
        return value.part(spec, mesh, rank)
    return shard(value, spec, mesh, rank).contiguous()


def placed(spec, value, device):
    """
    Returns an argument on `device`, or in the host's memory if `spec` says so. If the
    device is a GPU, this memory is pinned.
    """
    if not spec.host:
        return value.to(device)
    value = value.to("cpu")
    return value if device.type == "cpu" else value.pin_memory()


def collect(specs, own, meshes, rank):
    """
    Returns the whole tensors by name on rank 0, to which the other processes send their
    parts. `specs` are the tensors and `own` this process's parts, both by index.
    """
    whole = {}
    device = torch.get_default_device()
    own = {
        i: x.to(device) if specs[i].host else x for i, x in own.items() if i in specs
    }
    for index, spec in specs.items():
        mesh = None if spec.mesh is None else meshes[spec.mesh]
        if mesh is None:
            if rank == 0:
                whole[spec.name] = own[index]
            continue
        parts = {}
        for holder in holders(spec, mesh):
            if holder == rank:
                parts[rank] = own[index]
                if rank != 0:
                    collectives.send(own[index], 0)
            elif rank == 0:
                shape = local_shape(spec, mesh)
                parts[holder] = collectives.recv(shape, spec.dtype, holder)
        if rank == 0:
            whole[spec.name] = assemble(parts, spec, mesh)
    return whole


def report(text):
    """Prints a line of progress, on rank 0 only."""
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)


def start(backend, processes, timeout_s, init_method):
    """
    Joins the other processes and returns this process's rank and device. The rank and
    the number of processes come from torchrun's environment variables. Raises
    ProgramError if the number of processes is not `processes`, or a GPU is missing.
    """
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size != processes:
        raise ProgramError(
            f"this program is for {processes} processes, but was started with {size}; "
            f"use `torchrun --nproc-per-node {processes}`"
        )
    device = torch.device("cpu")
    if backend == "nccl":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        count = torch.cuda.device_count()
        if local >= count:
            raise ProgramError(
                f"nccl needs one GPU per process: rank {rank} needs GPU {local}, and "
                f"this machine has {count}; use --backend gloo to run on the CPU"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        torch.set_default_device(device)
    timeout = timedelta(seconds=timeout_s)
    if init_method == "env://" and dist.is_torchelastic_launched():
        meeting.join_ranks(backend, timeout)
        return rank, device
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group(
        backend, init_method=init_method, rank=rank, world_size=size, timeout=timeout
    )
    return rank, device


def check_compiler(backend):
    """
    Raises ProgramError if `torch.compile` has no compiler for its kernels on this
    machine.
    """
    if backend == "nccl":
        from torch.utils._triton import has_triton

        found, missing = (
            has_triton(),
            "Triton (pip install triton) and a GPU that it knows",
        )
    else:
        from torch._inductor import cpp_builder, exc

        missing = "a C++ compiler (g++ or clang++; the variable CXX may name it)"
        try:
            found = bool(cpp_builder.get_cpp_compiler())
        except exc.InvalidCxxCompiler:
            found = False
    if not found:
        raise ProgramError(
            f"this program is compiled when it runs, which needs {missing}; install that, "
            f"or leave out --compile"
        )


def body_of(program, rank, device):
    """
    Returns the program of process `rank`, made on `device`. Also creates all meshes, so
    every process must call this function at the same time.
    """
    meshes = {
        name: ProcessMesh(spec, device.type) for name, spec in program.MESHES.items()
    }
    own = program.RANKS[rank]
    return own.program(meshes, own.numbers)


def wait_for_all(device):
    """
    Waits until all processes have reached this call. `device` is this process's device.
    """
    dist.barrier(device_ids=None if device.type == "cpu" else [device.index])


@contextmanager
def processes(program, backend, timeout_s, init_method):
    """
    Joins the other processes, and yields this process's rank, device and program. At
    the end, waits for all processes and disconnects.
    """
    rank, device = start(backend, len(program.RANKS), timeout_s, init_method)
    try:
        with torch.inference_mode():
            yield rank, device, body_of(program, rank, device)
        wait_for_all(device)
    finally:
        dist.destroy_process_group()


def results_of(body, arguments):
    """
    Returns the results of a call of the program as a tuple, after all its sends have
    arrived.
    """
    with devices.no_default():
        results = body.main(*arguments)
        collectives.finish_sends()
    if isinstance(results, tuple):
        return results
    return () if results is None else (results,)


def started(body, arguments):
    """
    Calls a program whose caller computes the loss, and runs its forward pass. Returns
    the run (`modules.InterruptedRun`). In `arguments`, None stands for arguments that
    the run takes later.
    """
    with devices.no_default():
        return body.interrupted(arguments)


def resumed(run, gradients):
    """
    Continues `run`, the call of a program, after its forward pass. Empties the list
    `gradients`. At the end of the program, waits until all its sends have arrived.
    """
    with devices.no_default():
        run.resume(gradients)
        if run.results is not None:
            collectives.finish_sends()


def run(program, backend, sources, timeout_s=600.0, init_method="env://"):
    """
    Runs this process's part of the module `program`. Returns the results by name on
    rank 0, and nothing on other ranks. `sources` are tables of argument values by name;
    each argument comes from the first of these tables that contains it.
    """
    with processes(program, backend, timeout_s, init_method) as (rank, device, body):
        own = program.RANKS[rank].program
        report("loading arguments")
        arguments = [
            placed(
                spec,
                argument(spec, program.MESHES.get(spec.mesh), rank, sources),
                device,
            )
            if spec.default is None
            else spec.default
            for spec in (program.ARGUMENTS[i] for i in own.arguments)
        ]
        report("running")
        results = dict(zip(own.results, results_of(body, arguments), strict=True))
        report("gathering results")
        specs = dict(enumerate(program.RESULTS))
        return collect(specs, results, program.MESHES, rank)
