"""
Runs the programs of all ranks of a distributed program in lock-step, in one process.

Every rank is what `project` makes of it, carried out op by op on NumPy arrays. A rank
stops where it has to wait: in a collective until every member of its group is there, in a
blocking send until the receiver is, in a receive until something was sent. When nobody
can go on, the ranks wait for each other for ever, which is reported with what each waits
for. What `project` and the runtime rely on is checked on the way: members of a group
name the same collective in the same order, tensors have the shapes and element types
that their types say.

This is written apart from the reference interpreter, which runs distributed programs
without projecting them, and from the generated packages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective_ops.per_rank import (
    CoordinateOp,
    RecvFromRankOp,
    SendToRankOp,
    WaitOp,
)
from distir.dialects.collective_ops.rank_form import (
    InRankForm,
    RankAllGatherOp,
    RankAllReduceOp,
    RankAllToAllOp,
    RankBroadcastOp,
    RankGatherOp,
    RankPermuteOp,
    RankRaggedAllToAllOp,
    RankReduceOp,
    RankReduceScatterOp,
    RankScatterOp,
    RankSliceOp,
)
from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.interpreters.reference import ReferenceInterpreter
from distir.program import describe, entry_function, functions
from distir.program.source_forms import argument_forms, result_forms
from distir.sharding.layout import assemble, take_shard
from distir.sharding.mesh import meshes
from distir.transforms.projection import devices_of, project

Array = npt.NDArray[Any]
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class LockstepError(AssertionError):
    """The ranks do not go together: a deadlock, a mismatch, a tensor of another type."""


@dataclass(frozen=True)
class Blocked:
    """What a rank waits for; it goes on once `ready` is true."""

    ready: Callable[[], bool]
    rank: int
    op: Operation


@dataclass(frozen=True)
class Arriving:
    """A tensor on its way: there once `ready` is true, then `get` gives it."""

    ready: Callable[[], bool]
    get: Callable[[], Array]


Steps = Generator[Blocked, None, list[Any]]


@dataclass
class Network:
    """What the ranks have sent and joined so far."""

    sent: dict[tuple[int, int], list[Array]] = field(default_factory=dict)
    """Per pair of ranks what the first sent to the second, in order."""
    received: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many receives each pair has begun."""
    joined: dict[tuple[tuple[int, ...], int], dict[int, tuple[InRankForm, Array]]] = (
        field(default_factory=dict)
    )
    """Per group and turn what each member joined it with."""
    turns: dict[tuple[tuple[int, ...], int], int] = field(default_factory=dict)
    """How many collectives each member of a group has begun."""

    def send(self, rank: int, peer: int, array: Array) -> Callable[[], bool]:
        """Sends; tells whether the receiver was there."""
        queue = self.sent.setdefault((rank, peer), [])
        queue.append(array)
        number = len(queue)
        return lambda: self.received.get((rank, peer), 0) >= number

    def receive(self, rank: int, peer: int) -> Arriving:
        """Begins to receive the next tensor from a peer."""
        place = self.received.get((peer, rank), 0)
        self.received[peer, rank] = place + 1
        queue = self.sent.setdefault((peer, rank), [])
        return Arriving(lambda: len(queue) > place, lambda: queue[place])

    def join(self, rank: int, op: InRankForm, array: Array) -> Arriving:
        """Begins the next collective of the op's group."""
        group = op.ranks
        assert group is not None
        if rank not in group:
            raise LockstepError(f"{describe(op)} on rank {rank} has group {group}")
        turn = self.turns.get((group, rank), 0)
        self.turns[group, rank] = turn + 1
        members = self.joined.setdefault((group, turn), {})
        members[rank] = op, array
        found: list[Array] = []

        def get() -> Array:
            if not found:
                for other, _ in members.values():
                    if not _agree(op, other):
                        raise LockstepError(
                            f"group {group} does not agree on its collective number "
                            f"{turn}: {op} or {other}"
                        )
                found.append(_outcome(op, group, rank, [members[r][1] for r in group]))
            return found[0]

        return Arriving(lambda: len(members) == len(group), get)


def _agree(op: InRankForm, other: InRankForm) -> bool:
    """Whether two members of a group mean the same collective."""
    return op is other or (
        op.name == other.name
        and op.properties == other.properties
        and op.source.type == other.source.type
        and op.result.type == other.result.type
    )


def _number(op: Operation, name: str) -> int | None:
    attribute = op.properties.get(name)
    return None if attribute is None else attribute.value.data  # type: ignore[attr-defined]


def _split(
    x: Array, parts: int, dim: int, run: int | None, blocks: int | None = None
) -> list[Array]:
    """Element i of a block belongs to part (i // run) % parts of the block."""
    if blocks is not None:
        own = parts // blocks
        found = np.split(x, blocks, dim)
        return [part for block in found for part in _split(block, own, dim, run)]
    size = x.shape[dim]
    length = size // parts if run is None else run
    owner = np.arange(size) // max(length, 1) % parts
    return [np.compress(owner == part, x, dim) for part in range(parts)]


def _join(
    pieces: Sequence[Array], dim: int, run: int | None, blocks: int | None = None
) -> Array:
    """The inverse of `_split`."""
    size = sum(p.shape[dim] for p in pieces)
    places = _split(np.arange(size), len(pieces), 0, run, blocks)
    joined = np.concatenate(pieces, dim)
    return np.take(joined, np.argsort(np.concatenate(places)), dim)


def _outcome(
    op: InRankForm,
    group: tuple[int, ...],
    rank: int,
    arrays: Sequence[Array],
) -> Array:
    """What a collective gives a member; `arrays` are those of all members."""
    place = group.index(rank)
    dim, run = _number(op, "dim"), _number(op, "run")
    root = _number(op, "root")
    first = group.index(root) if root is not None else 0

    def reduced() -> Array:
        assert op.reduction_name is not None
        return reduce(COMBINE[op.reduction_name], arrays)

    def part(x: Array, over: int | None, length: int | None) -> Array:
        assert over is not None
        return _split(x, len(group), over, length)[place]

    match op:
        case RankAllReduceOp():
            return reduced()
        case RankReduceScatterOp():
            return part(reduced(), dim, run)
        case RankAllGatherOp():
            assert dim is not None
            return _join(arrays, dim, run)
        case RankAllToAllOp() | RankRaggedAllToAllOp():
            assert dim is not None
            over, length = _number(op, "split_dim"), _number(op, "split_run")
            assert over is not None
            within = _number(op, "split_blocks")
            parts = [_split(x, len(group), over, length, within) for x in arrays]
            mine = [each[place] for each in parts]
            return _join(mine, dim, run, _number(op, "blocks"))
        case RankPermuteOp():
            shift = op.number("shift")
            shift = 1 if shift is None else shift
            return arrays[(place - shift) % len(group)]
        case RankBroadcastOp():
            return arrays[first]
        case RankScatterOp():
            return part(arrays[first], dim, run)
        case RankReduceOp():
            return reduced()
        case RankGatherOp():
            assert dim is not None
            return _join(arrays, dim, run)
        case _:
            raise LockstepError(f"{describe(op)}: unknown collective")


class Rank:
    """One rank and its program."""

    def __init__(self, number: int, module: ModuleOp, network: Network):
        self.number = number
        self.module = module
        self.network = network
        self.functions = functions(module)
        self.interpreter = ReferenceInterpreter(module)

    def run(self, function: FuncOp, arguments: Sequence[Any]) -> Steps:
        """The results of a function; yields wherever the rank has to wait."""
        values: dict[SSAValue, Any] = {}
        for argument, given in zip(function.body.block.args, arguments, strict=True):
            values[argument] = given
        for op in function.body.block.ops:
            inputs = [values[v] for v in op.operands]
            if isinstance(op, ReturnOp):
                return inputs
            results = yield from self._op(op, inputs)
            for value, result in zip(op.results, results, strict=True):
                if not isinstance(result, Arriving):
                    self._check(op, value, result)
                values[value] = result
        raise LockstepError(f"@{function.sym_name.data} has no return")

    def _op(self, op: Operation, inputs: Sequence[Any]) -> Steps:
        if isinstance(op, WaitOp):
            (arriving,) = inputs
            if not isinstance(arriving, Arriving):
                return [arriving]
            return [(yield from self._wait(arriving, op))]
        if isinstance(op, CallOp):
            # Results of asynchronous collectives may be handed on before they are there.
            return (
                yield from self.run(self.functions[op.callee.string_value()], inputs)
            )
        if any(isinstance(value, Arriving) for value in inputs):
            raise LockstepError(f"{describe(op)} uses what is still on its way")
        match op:
            case SendToRankOp():
                there = self.network.send(self.number, op.peer.value.data, inputs[0])
                if not op.is_asynchronous:
                    yield Blocked(there, self.number, op)
                return []
            case RecvFromRankOp():
                arriving = self.network.receive(self.number, op.peer.value.data)
                if op.is_asynchronous:
                    return [arriving]
                return [(yield from self._wait(arriving, op))]
            case RankSliceOp():
                return [_outcome_of_slice(op, op.ranks, self.number, inputs[0])]
            case InRankForm():
                arriving = self.network.join(self.number, op, inputs[0])
                if op.is_asynchronous:
                    return [arriving]
                return [(yield from self._wait(arriving, op))]
            case CoordinateOp():
                return [np.array(op.index.value.data, np.int64)]
            case _:
                return list(self.interpreter.run_op(op, tuple(inputs)))

    def _wait(
        self, arriving: Arriving, op: Operation
    ) -> Generator[Blocked, None, Array]:
        if not arriving.ready():
            yield Blocked(arriving.ready, self.number, op)
        return arriving.get()

    def _check(self, op: Operation, value: SSAValue, result: Any) -> None:
        if not isinstance(value.type, TensorType):
            return
        shape, dtype = value.type.get_shape(), numpy_dtype(value.type.element_type)
        # A gather onto a root means nothing on other ranks, whatever its shape.
        if isinstance(op, RankGatherOp | RankReduceOp):
            return
        if result.shape != shape or result.dtype != dtype:
            raise LockstepError(
                f"{describe(op)} on rank {self.number} gives "
                f"{result.dtype}{list(result.shape)}, but its type is {value.type}"
            )


def _outcome_of_slice(
    op: RankSliceOp, group: tuple[int, ...], rank: int, array: Array
) -> Array:
    dim = _number(op, "dim")
    assert dim is not None
    return _split(array, len(group), dim, _number(op, "run"))[group.index(rank)]


def _drive(ranks: Mapping[int, Steps]) -> dict[int, list[Any]]:
    """Lets every rank go on as far as it can, in turns, until all are done."""
    waiting: dict[int, Blocked | None] = dict.fromkeys(ranks)
    done: dict[int, list[Any]] = {}
    while len(done) < len(ranks):
        moved = False
        for number, steps in ranks.items():
            blocked = waiting[number]
            if number in done or (blocked is not None and not blocked.ready()):
                continue
            moved = True
            try:
                waiting[number] = next(steps)
            except StopIteration as end:
                done[number] = end.value
        if not moved:
            stuck = [f"rank {b.rank} in {b.op}" for b in waiting.values() if b]
            raise LockstepError("the ranks wait for each other: " + "; ".join(stuck))
    return done


def run_ranks(module: ModuleOp, arguments: Sequence[Array]) -> list[Array]:
    """
    The global results of a distributed program, every rank of it projected and run on
    its parts of the global arguments, all as the source model has them. Raises
    LockstepError, DistIRError.
    """
    known = meshes(module)
    entry = entry_function(module)
    arguments = [
        array if form is None else form.stored(array)
        for array, form in zip(arguments, argument_forms(entry), strict=True)
    ]
    network = Network()
    running: dict[int, Steps] = {}
    for number in devices_of(module):
        projected = project(module, number)
        projected.verify()
        rank = Rank(number, projected, network)
        own: list[Array] = []
        for array, type_ in zip(arguments, entry.function_type.inputs, strict=True):
            layout = layout_of(type_)
            if layout is None:
                own.append(array)
            elif number in known[layout.mesh].devices:
                mesh = known[layout.mesh]
                own.append(take_shard(array, layout, mesh, mesh.coordinates_of(number)))
        running[number] = rank.run(entry_function(projected), own)
    done = _drive(running)
    results: list[Array] = []
    for type_ in entry.function_type.outputs:
        assert isinstance(type_, TensorType)
        layout = layout_of(type_)
        if layout is None:
            results.append(next(own.pop(0) for own in done.values()))
            continue
        mesh = known[layout.mesh]
        shards = {device: done[device].pop(0) for device in mesh.devices}
        ordered = [shards[device] for device in mesh.devices]
        _check_replicas(ordered, type_, mesh)
        results.append(assemble(ordered, type_.get_shape(), layout, mesh))
    return [
        array if form is None else form.source(array)
        for array, form in zip(results, result_forms(entry), strict=True)
    ]


def _check_replicas(shards: Sequence[Array], type_: TensorType[Any], mesh: Any) -> None:
    """Devices that hold the same part have computed the same."""
    layout = layout_of(type_)
    assert layout is not None
    used = (*layout.split_axes, *layout.partial_axes)
    first: dict[tuple[int, ...], Array] = {}
    for shard, coordinates in zip(shards, mesh.coordinates, strict=True):
        other = first.setdefault(tuple(coordinates[a] for a in used), shard)
        if shard is other or shard.dtype.kind not in "fc":
            same = shard is other or bool((shard == other).all())
        else:
            scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=1e-3))
            same = np.allclose(shard, other, 1e-3, 1e-4 * scale, equal_nan=True)
        if not same:
            raise LockstepError(f"devices disagree on a result of type {type_}")
