"""
Turns attention on gathered keys and values into a ring, in which devices pass on
blocks. A block is a device's part of keys and values. At step s of n, a device computes
the attention of its queries on the block of the device s places before it along the
axis. At the same time it sends this block to the next device. The results of the steps
are merged by the logarithms of their sums of exponentials. In the backward pass, the
gradients of a block travel with the block and return to the block's device after n
steps. No device ever holds all keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, UnitAttr, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern

from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    PermuteOp,
    ReduceScatterOp,
    SliceOp,
)
from distir.dialects.dist import Layout, Shard, layout_of, with_layout
from distir.dialects.dist_attributes import ASYNCHRONOUS, SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    CausalAttentionOp,
    FusedAttentionOp,
    MergeAttentionOp,
    PlacedAttentionGradOp,
)
from distir.program import describe
from distir.sharding.mesh import Mesh, meshes

Gradient = AttentionGradOp | PlacedAttentionGradOp


@dataclass(frozen=True)
class _Ring:
    """
    The data for attention that becomes a ring. `shard` is the split of the queries.
    `keys` and `values` are the parts of keys and values before they were gathered, over
    an axis with `devices` devices.
    """

    shard: Shard
    devices: int
    keys: SSAValue
    values: SSAValue

    def run_length(self, length: int) -> int:
        """
        Returns the number of contiguous positions on a device of a sequence of length
        `length`.
        """
        run = self.shard.run
        return length // self.devices if run is None else run


def _gathered(value: SSAValue, dim: int, shard: Shard) -> SSAValue | None:
    """
    Returns the value from which `value` was gathered along the dimension `dim`. Returns
    None if `value` was not gathered, or if `shard` was not the only split of that
    dimension.
    """
    gather = value.owner
    if not isinstance(gather, AllGatherOp) or gather.axis_names != (shard.axis,):
        return None
    before = layout_of(gather.source)
    return gather.source if before and before.dim(dim) == (shard,) else None


def _is_gathered(value: SSAValue, axis: str) -> bool:
    return isinstance(value.owner, AllGatherOp) and axis in value.owner.axis_names


def _ring_of(
    op: FusedAttentionOp, known: Mapping[str, Mesh], axis: str
) -> _Ring | None:
    """
    Returns the ring that an attention op can become. Returns None if the op has a mask,
    or if its keys and values were not gathered.
    """
    layout = layout_of(op.q)
    dim = 1 if op.is_packed else 2
    is_one = op.sizes.queries == op.sizes.keys
    if layout is None or op.mask is not None or op.blocks is not None or not is_one:
        return None
    match layout.dim(dim):
        case (Shard() as shard,) if shard.axis == axis:
            keys, values = (_gathered(x, dim, shard) for x in (op.k, op.v))
        case _:
            return None
    if keys is None or values is None:
        return None
    return _Ring(shard, known[layout.mesh].size(axis), keys, values)


def _scattered(value: SSAValue, like: SSAValue) -> ReduceScatterOp | None:
    """
    Returns the reduce-scatter that is the only use of the gradient `value` and that
    returns a value with the layout of `like`. Returns None if there is no such op.
    """
    users = [use.operation for use in value.uses]
    match users:
        case [ReduceScatterOp() as user] if layout_of(user.result) == layout_of(like):
            return user
        case _:
            return None


class _RingWriter:
    """
    Appends the ops of a ring's steps, with the scope of the replaced attention op.
    """

    def __init__(self, op: FusedAttentionOp, ring: _Ring):
        self.op = op
        self.ring = ring
        self.ops: list[Operation] = []
        self.scope = {n: a for n, a in op.attributes.items() if n == SCOPE}
        count = {"blocks": IntegerAttr(ring.devices, i64)}
        if ring.shard.run is not None:
            count["run"] = IntegerAttr(ring.shard.run, i64)
        self.properties = {**op.properties, **count}

    def add(self, op: Operation) -> Sequence[SSAValue]:
        """Appends `op` and returns its results."""
        op.attributes.update(self.scope)
        self.ops.append(op)
        return op.results

    def passed_on(self, value: SSAValue) -> SSAValue:
        """
        Sends `value` to the next device and returns the previous device's value. The
        transfer is asynchronous.
        """
        (result,) = self.add(PermuteOp(value, [self.ring.shard.axis], value.type))
        self.ops[-1].attributes[ASYNCHRONOUS] = UnitAttr()
        return result

    def onnx(self, name: str, *operands: SSAValue) -> SSAValue:
        """
        Appends an elementwise ONNX operator and returns its result. The result has the
        type of the first operand.
        """
        built = operator(name).build_op(operands, [operands[0].type])
        return self.add(built)[0]

    def number(self, value: int, layout: Layout) -> SSAValue:
        """
        Returns the integer `value` as a constant that is the same on every device.
        """
        type_ = with_layout(TensorType(i64, []), Layout(layout.mesh))
        given = {"value": constant_attr(np.array(value))}
        return self.add(operator("Constant").build_op([], [type_], given))[0]

    def positions(self) -> Iterator[tuple[SSAValue, ...]]:
        """
        Yields, for each step, the positions of this device's queries and of the keys
        that the device has in this step. Yields empty tuples if all queries see all
        keys.
        """
        op = self.op
        if not isinstance(op, CausalAttentionOp):
            for _ in range(self.ring.devices):
                yield ()
            return
        queries = op.query_positions
        yield queries, self._own_positions(op)
        for step in range(1, self.ring.devices):
            yield queries, self._shifted(op, step)

    def _own_positions(self, op: CausalAttentionOp) -> SSAValue:
        """Returns the positions of the device's own keys."""
        mine = op.query_positions.owner
        if isinstance(mine, SliceOp) and mine.source is op.key_positions:
            return op.query_positions
        type_ = op.query_positions.type
        return self.add(SliceOp(op.key_positions, [self.ring.shard.axis], type_))[0]

    def _shifted(self, op: CausalAttentionOp, step: int) -> SSAValue:
        """
        Returns the positions of the keys of the device `step` places before this
        device. If positions are dealt out to the devices in rounds, each round is
        treated separately: the result has, for each run of this device, the run that
        the other device has in the same round.
        """
        own = self._own_positions(op)
        layout = layout_of(own)
        assert layout is not None
        length = shape_of(own.type)[0]
        run = self.ring.run_length(length)
        around = self.number(run * self.ring.devices, layout)
        in_rounds = run * self.ring.devices < length
        place = self.onnx("Mod", own, around) if in_rounds else own
        before = self.onnx("Sub", place, self.number(step * run, layout))
        shifted = self.onnx("Mod", before, around)
        if not in_rounds:
            return shifted
        return self.onnx("Add", self.onnx("Sub", own, place), shifted)

    def attention(
        self, step: int, operands: Sequence[SSAValue], types: Sequence[Attribute]
    ) -> Sequence[SSAValue]:
        """
        Appends the attention op for the block of one step and returns its results.
        """
        properties = self.properties.copy()
        if isinstance(self.op, CausalAttentionOp):
            properties["step"] = IntegerAttr(step, i64)
        kind = type(self.op)
        return self.add(
            kind.create(operands=operands, result_types=types, properties=properties)
        )


def _forward(
    op: FusedAttentionOp, ring: _Ring
) -> tuple[list[Operation], list[SSAValue]]:
    write = _RingWriter(op, ring)
    types = [r.type for r in op.results]
    keys, values = ring.keys, ring.values
    found: Sequence[SSAValue] = ()
    for step, positions in enumerate(write.positions()):
        own = keys, values
        if step + 1 < ring.devices:
            keys, values = write.passed_on(keys), write.passed_on(values)
        part = write.attention(step, [*positions, op.q, *own], types)
        if found:
            merged = MergeAttentionOp.create(
                operands=[*found, *part], result_types=types
            )
            part = write.add(merged)
        found = part
    return write.ops, [*found]


def _backward(op: Gradient, ring: _Ring) -> tuple[list[Operation], list[SSAValue]]:
    write = _RingWriter(op, ring)
    types = [op.dq.type, ring.keys.type, ring.values.type]
    keys, values = ring.keys, ring.values
    sums: list[SSAValue] = []
    for step, positions in enumerate(write.positions()):
        own = keys, values
        if step + 1 < ring.devices:
            keys, values = write.passed_on(keys), write.passed_on(values)
        given = [op.dy, op.y, op.logsumexp, *positions, op.q, *own]
        parts = write.attention(step, given, types)
        if sums:
            sums = [write.onnx("Add", a, b) for a, b in zip(sums, parts, strict=True)]
        else:
            sums = [*parts]
        # The gradients of a block travel with the block.
        sums[1:] = [write.passed_on(x) for x in sums[1:]]
    return write.ops, sums


@dataclass
class PassBlocksOn(RewritePattern):
    """
    Replaces attention on keys and values that were gathered over `axis` by a ring.
    """

    known: Mapping[str, Mesh]
    axis: str
    made: int = 0
    left: list[str] = field(default_factory=list[str])
    """
    Descriptions, for users, of attention on gathered keys that cannot become a ring.
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if not isinstance(op, FusedAttentionOp):
            return
        ring = _ring_of(op, self.known, self.axis)
        if ring is None:
            if any(_is_gathered(x, self.axis) for x in (op.k, op.v)):
                self.left.append(describe(op))
            return
        gathers = list(dict.fromkeys((op.k.owner, op.v.owner)))
        if isinstance(op, Gradient):
            scatters = [_scattered(op.dk, ring.keys), _scattered(op.dv, ring.values)]
            if None in scatters:
                self.left.append(describe(op))
                return
            ops, (dq, *gradients) = _backward(op, ring)
            rewriter.insert(ops)
            op.dq.replace_all_uses_with(dq)
            for scatter, gradient in zip(scatters, gradients, strict=True):
                assert scatter is not None
                rewriter.replace(scatter, [], [gradient])
            rewriter.erase(op)
        else:
            rewriter.replace(op, *_forward(op, ring))
        self.made += 1
        for gather in gathers:
            if isinstance(gather, Operation) and gather.results[0].first_use is None:
                rewriter.erase(gather)


def ring_attention(module: ModuleOp, axis: str) -> PassBlocksOn:
    """
    Replaces attention whose keys and values are gathered over `axis` by rings, in
    place. Returns the rewrite pattern, which has the number of rings and the attention
    ops that were not replaced.
    """
    pattern = PassBlocksOn(meshes(module), axis)
    PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(module)
    return pattern
