"""
Joins collectives of neighbouring tensors into one message. Every collective has a
latency, however small its tensor is. Collectives of the same kind are therefore moved
next to each other and get the same id in `dist.bucket`. Such a group is called a
bucket. A later collective moves up to the bucket if its operand is already computed
there. Otherwise the bucket moves down to the collective, if no op in between uses the
bucket's results.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist import layout_of
from distir.dialects.dist_attributes import BUCKET
from distir.program import functions
from distir.sharding.mesh import Mesh, meshes
from distir.sharding.prices import local_bytes

Limit = Callable[[CollectiveOp], float]
"""
A function that returns the largest size of a bucket, in bytes per device. Its argument
is the first collective of the bucket.
"""


def no_limit(first: CollectiveOp) -> float:
    """Returns infinity: with this limit, buckets can have any size."""
    return inf


@dataclass
class CollectiveBucket:
    """
    Collectives that are sent as one message. `members` are their indices among the
    function's ops, in order. `place` is the index of the member that stays at its
    position; all other members move next to it. `size` is the number of bytes of all
    members on a device, and `limit` the largest allowed size.
    """

    limit: float
    place: int
    members: list[int] = field(default_factory=list[int])
    size: float = 0.0


class CollectiveBucketer:
    """
    Forms the buckets of functions. `known` maps symbols to the meshes of the program.
    `limit` takes the first collective of a bucket and returns the bucket's largest size
    in bytes.
    """

    def __init__(self, known: Mapping[str, Mesh], limit: Limit = no_limit):
        self.known = known
        self.limit = limit

    def bucket(self, function: FuncOp) -> None:
        """
        Forms the buckets of a function: reorders the function's ops and gives
        collectives the ids of their buckets. Removes the ids of earlier buckets.
        """
        ops = list(function.body.block.ops)
        for op in ops:
            op.attributes.pop(BUCKET, None)
        reads, writes = [op.operands for op in ops], [op.results for op in ops]
        self.form(ops, reads, writes)

    def form(
        self,
        ops: Sequence[Operation],
        reads: Sequence[Sequence[Hashable]],
        writes: Sequence[Sequence[Hashable]],
    ) -> list[CollectiveBucket]:
        """
        Forms the buckets among `ops`, and returns the buckets with several members.
        Moves the members of each bucket next to each other, and gives them the bucket's
        id. `reads` lists, for each op, the values that the op uses, and `writes` the
        values that the op defines. Any hashable keys may stand for the values.
        """
        # By class, as a function has thousands of ops of a few classes.
        kinds = {
            kind
            for kind in {type(op) for op in ops}
            if issubclass(kind, CollectiveOp) and kind.CAN_JOIN
        }
        if sum(type(op) in kinds for op in ops) < 2:
            return []
        found = [b for b in self.buckets(ops, reads, writes) if len(b.members) > 1]
        for number, bucket in enumerate(found):
            members: list[Operation] = [ops[i] for i in bucket.members]
            self._write(members, ops[bucket.place], number)
        return found

    def buckets(
        self,
        ops: Sequence[Operation],
        reads: Sequence[Sequence[Hashable]],
        writes: Sequence[Sequence[Hashable]],
    ) -> list[CollectiveBucket]:
        """
        Returns the buckets for ops that run in the order of `ops`. A collective that
        joins no other collective is a bucket of one. `reads` lists, for each op, the
        values that the op uses, and `writes` the values that the op defines. Any
        hashable keys may stand for the values.
        """
        places = _Places(ops, reads, writes)
        latest: dict[object, CollectiveBucket] = {}
        found: list[CollectiveBucket] = []
        for i, op in enumerate(ops):
            if not isinstance(op, CollectiveOp) or not op.CAN_JOIN:
                continue
            size = max(self._bytes(op.source), self._bytes(op.result))
            message = op.message
            bucket = latest.get(message)
            if (
                bucket is None
                or bucket.size + size > bucket.limit
                or not places.join(i, bucket)
            ):
                bucket = CollectiveBucket(self.limit(op), i)
                latest[message] = bucket
                found.append(bucket)
            bucket.members.append(i)
            bucket.size += size
        return found

    def _write(
        self, members: Sequence[Operation], anchor: Operation, number: int
    ) -> None:
        """
        Moves the members of a bucket next to `anchor`, and gives them the id `number`.
        `anchor` is the member that stays at its position.
        """
        block = anchor.parent_block()
        assert block is not None
        index = next(i for i, op in enumerate(members) if op is anchor)
        for op in members[:index]:
            op.detach()
            block.insert_op_before(op, anchor)
        for op in reversed(members[index + 1 :]):
            op.detach()
            block.insert_op_after(op, anchor)
        for op in members:
            op.attributes[BUCKET] = BUCKET.attr(number)

    def _bytes(self, value: SSAValue) -> float:
        layout = layout_of(value)
        assert layout is not None  # the op's verifier
        return local_bytes(value, layout, self.known[layout.mesh])


class _Places:
    """
    The positions of a function's ops while buckets are formed. All ops of a bucket
    share one position: the index of the member that does not move.
    """

    def __init__(
        self,
        ops: Sequence[Operation],
        reads: Sequence[Sequence[Hashable]],
        writes: Sequence[Sequence[Hashable]],
    ):
        self.ops, self.reads, self.writes = ops, reads, writes
        self.of = list(range(len(ops)))
        self.calls = [i for i, op in enumerate(ops) if type(op) is CallOp]
        self.owners = {value: i for i, found in enumerate(writes) for value in found}
        sent = {
            value
            for op, found in zip(ops, writes, strict=True)
            if isinstance(op, CollectiveOp)
            for value in found
        }
        self.users: dict[Hashable, list[int]] = {value: [] for value in sent}
        for i, found in enumerate(reads):
            for value in sent.intersection(found):
                self.users[value].append(i)

    def join(self, op: int, bucket: CollectiveBucket) -> bool:
        """
        Moves the op with index `op` to an earlier bucket, or the bucket to the op.
        Returns False, and moves nothing, if neither move is possible.
        """
        here, there = self.of[op], bucket.place
        # Across a call, a wait would come too early, or memory would be held too long.
        collective = self.ops[op]
        assert isinstance(collective, CollectiveOp)
        stays = collective.is_asynchronous or isinstance(collective, AllGatherOp)
        if stays and bisect(self.calls, here) != bisect(self.calls, there):
            return False
        if all(self._is_there(value, there) for value in self.reads[op]):
            self.of[op] = there
            return True
        if any(self._is_used(member, here) for member in bucket.members):
            return False
        bucket.place = here
        for member in bucket.members:
            self.of[member] = here
        return True

    def _is_there(self, value: Hashable, place: int) -> bool:
        """
        Whether `value` is an argument of the function, or computed before the position
        `place`.
        """
        owner = self.owners.get(value)
        return owner is None or self.of[owner] < place

    def _is_used(self, op: int, place: int) -> bool:
        """
        Whether a result of the op with index `op` is used at or before the position
        `place`.
        """
        users = (user for value in self.writes[op] for user in self.users[value])
        return any(self.of[user] <= place for user in users)


def bucket_collectives(module: ModuleOp, limit: Limit = no_limit) -> None:
    """
    Forms the buckets of all functions of a distributed program, in place. `limit` takes
    the first collective of a bucket and returns the bucket's largest size in bytes.
    """
    bucketer = CollectiveBucketer(meshes(module), limit)
    for function in functions(module).values():
        bucketer.bucket(function)
