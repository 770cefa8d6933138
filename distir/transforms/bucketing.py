"""
Collectives of neighbouring tensors become one message.

A collective has a latency of its own, however small its tensor is. Those of one kind that
nothing keeps apart are brought together and marked `dist.joined`: they form a bucket. One
that comes later moves up to the bucket if its operand is there by then; otherwise the
bucket moves down to it if nothing uses what the bucket gives before.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.collective import AllGatherOp, CollectiveOp
from distir.dialects.dist import JOINED, layout_of
from distir.program import functions
from distir.sharding.mesh import Mesh, meshes
from distir.sharding.prices import local_bytes

Limit = Callable[[CollectiveOp], float]
"""The bytes per device that a bucket should hold which begins with that collective."""


def no_limit(first: CollectiveOp) -> float:
    """Buckets of any size."""
    return inf


@dataclass
class _Bucket:
    """
    Collectives that travel together, in order: where in the function, as an index of its
    ops, and how many bytes they have.
    """

    limit: float
    place: int
    ops: list[CollectiveOp] = field(default_factory=list[CollectiveOp])
    size: float = 0.0


class CollectiveBucketer:
    """
    Forms the buckets of functions. `known` are the program's meshes, by their symbols;
    `limit` says when a bucket is full.
    """

    def __init__(self, known: Mapping[str, Mesh], limit: Limit = no_limit):
        self.known = known
        self.limit = limit

    def bucket(self, function: FuncOp) -> None:
        """Orders the ops of a function anew and marks what joins another collective."""
        block = function.body.block
        places = _Places(list(block.ops))
        latest: dict[object, _Bucket] = {}
        buckets: list[_Bucket] = []
        for op in block.ops:
            if not isinstance(op, CollectiveOp) or not op.CAN_JOIN:
                continue
            size = max(self._bytes(op.source), self._bytes(op.result))
            bucket = latest.get(op.message)
            if (
                bucket is None
                or bucket.size + size > bucket.limit
                or not places.join(op, bucket)
            ):
                bucket = _Bucket(self.limit(op), places.of[op])
                latest[op.message] = bucket
                buckets.append(bucket)
            bucket.ops.append(op)
            bucket.size += size
        for bucket in buckets:
            self._write(bucket, places.ops[bucket.place])

    def _write(self, bucket: _Bucket, anchor: Operation) -> None:
        """Brings the ops together where one of them, the anchor, stands."""
        block = anchor.parent_block()
        assert block is not None
        index = next(i for i, op in enumerate(bucket.ops) if op is anchor)
        for op in bucket.ops[:index]:
            op.detach()
            block.insert_op_before(op, anchor)
        for op in reversed(bucket.ops[index + 1 :]):
            op.detach()
            block.insert_op_after(op, anchor)
        for op in bucket.ops[1:]:
            op.attributes[JOINED] = UnitAttr()

    def _bytes(self, value: SSAValue) -> float:
        layout = layout_of(value)
        assert layout is not None  # the op's verifier
        return local_bytes(value, layout, self.known[layout.mesh])


class _Places:
    """
    Where the ops of a function come to be: what is in one bucket has one place, the index
    of the op of the bucket that stays where it is.
    """

    def __init__(self, ops: Sequence[Operation]):
        self.ops = ops
        self.of = {op: i for i, op in enumerate(ops)}
        self.calls = [i for i, op in enumerate(ops) if isinstance(op, CallOp)]

    def join(self, op: CollectiveOp, bucket: _Bucket) -> bool:
        """Brings an op and a bucket before it together, if nothing forbids it."""
        here, there = self.of[op], bucket.place
        # Beside a call there is something to wait for, or memory to hold meanwhile.
        stays = op.is_asynchronous or isinstance(op, AllGatherOp)
        if stays and bisect(self.calls, here) != bisect(self.calls, there):
            return False
        if all(self._is_there(value, there) for value in op.operands):
            self.of[op] = there
            return True
        if any(self._is_used(member, here) for member in bucket.ops):
            return False
        bucket.place = here
        self.of.update(dict.fromkeys(bucket.ops, here))
        return True

    def _is_there(self, value: SSAValue, place: int) -> bool:
        """Whether a value is computed before a place."""
        return isinstance(value.owner, Block) or self.of[value.owner] < place

    def _is_used(self, op: Operation, place: int) -> bool:
        """Whether something uses a result of an op before a place, or at it."""
        users = [use.operation for result in op.results for use in result.uses]
        # Ops that passes took out of the function are not there any more.
        return any(user in self.of and self.of[user] <= place for user in users)


def bucket_collectives(module: ModuleOp, limit: Limit = no_limit) -> None:
    """Forms the buckets of all functions of a distributed program, in place."""
    bucketer = CollectiveBucketer(meshes(module), limit)
    for function in functions(module).values():
        bucketer.bucket(function)
