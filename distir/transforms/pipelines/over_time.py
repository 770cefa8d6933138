"""Types and layouts of values that are split or partial over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import (
    Layout,
    ReshardOp,
    Shard,
    layout_of,
    with_layout,
)
from distir.errors import DistIRError
from distir.sharding.layout import canonical
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import (
    REPLICATED,
    PartialPlacement,
    Placement,
    SplitPlacement,
    placement_in,
)

Axes = tuple[tuple[str, int], ...]
"""The names of the axes of a mesh, with their sizes."""


def over_time(value: SSAValue) -> Placement:
    """
    Returns the placement of `value` on the micro-batch axis: split, partial or
    replicated. A replicated value is the same for all micro-batches.
    """
    layout = layout_of(value)
    return REPLICATED if layout is None else placement_in(layout, TIME_AXIS)


def split_over_time(value: SSAValue) -> SplitPlacement:
    """
    Returns the placement of `value` on the micro-batch axis, along which `value` must
    be split.
    """
    placement = over_time(value)
    assert isinstance(placement, SplitPlacement)
    return placement


def reduction_over_time(value: SSAValue) -> str:
    """
    Returns the reduction, such as a sum, that combines the micro-batches of `value`,
    which must be partial over micro-batches.
    """
    placement = over_time(value)
    assert isinstance(placement, PartialPlacement)
    return placement.reduction


def without_time(layout: Layout) -> Layout:
    """
    Returns `layout` without the micro-batch axis: the layout of all micro-batches
    together.
    """
    dims = tuple(
        tuple(s for s in shards if s.axis != TIME_AXIS) for shards in layout.dims
    )
    return replace(layout, dims=dims).without_partial([TIME_AXIS])


def gathers_micro_batches(op: Operation) -> bool:
    """Whether `op` combines the micro-batches of a value."""
    return (
        isinstance(op, ReshardOp)
        and over_time(op.operands[0]) is not REPLICATED
        and over_time(op.results[0]) is REPLICATED
    )


def works_on_parts(op: Operation) -> bool:
    """
    Whether an operand or a result of `op` is split into micro-batches. The answer is
    False for an op that only combines micro-batches.
    """
    split = any(
        isinstance(over_time(v), SplitPlacement) for v in (*op.operands, *op.results)
    )
    return split and not gathers_micro_batches(op)


def micro_batch_type(type_: Attribute, mesh: Mesh, target: str) -> Attribute:
    """
    Returns the type of one micro-batch of a value of type `type_`. `mesh` is the mesh
    of the value, with the micro-batch axis. The result is on the mesh named `target`,
    which has the remaining axes.
    """
    layout = layout_of(type_)
    if layout is None or not isinstance(type_, TensorType):
        return type_
    count = mesh.size(TIME_AXIS)
    shape = [
        size // count if any(s.axis == TIME_AXIS for s in shards) else size
        for size, shards in zip(
            type_.get_shape(), layout.full_dims(type_.get_num_dims()), strict=True
        )
    ]
    folded = replace(without_time(layout), mesh=target)
    return with_layout(TensorType(type_.element_type, shape), folded)


def whole_type(type_: Attribute, mesh: Mesh, target: str) -> Attribute:
    """
    Returns the type of all micro-batches of a value together. `type_` is the type of
    the value on `mesh`, which has the micro-batch axis. The result is on the mesh named
    `target`, which has the remaining axes. If devices split the batch, they split each
    micro-batch, so that a device's part of the whole batch consists of several runs of
    elements, one per micro-batch.
    """
    layout = layout_of(type_)
    if layout is None or not isinstance(type_, TensorType):
        return type_
    dims: list[tuple[Shard, ...]] = []
    shape = type_.get_shape()
    for size, shards in zip(shape, layout.full_dims(len(shape)), strict=True):
        left, runs = size, list[Shard]()
        over = any(s.axis == TIME_AXIS for s in shards)
        if over:
            left //= mesh.size(TIME_AXIS)
        for shard in shards:
            if shard.axis == TIME_AXIS:
                continue
            left //= mesh.size(shard.axis)
            run = left if over and shard.run is None else shard.run
            runs.append(Shard(shard.axis, run))
        dims.append(tuple(runs))
    whole = canonical(shape, replace(without_time(layout), dims=tuple(dims)), mesh)
    return with_layout(type_, replace(whole, mesh=target))


def moved_type(type_: Attribute, target: str) -> Attribute:
    """
    Returns `type_` with its layout on the mesh named `target`, which has the same axes
    as the mesh of `type_`.
    """
    layout = layout_of(type_)
    if layout is None or not isinstance(type_, TensorType):
        return type_
    return with_layout(type_, replace(layout, mesh=target))


def resized_type(type_: Attribute, mesh: Mesh, stage: Mesh) -> Attribute:
    """
    Returns the type on the mesh `stage` of a value whose type on `mesh` is `type_`. The
    axes of `stage` are axes of `mesh`, and their sizes divide the sizes of the same
    axes in `mesh`. The value is split over the axes of `stage`. If the split is
    block-cyclic, the blocks of a device stay as far apart as before, and become longer
    where an axis has fewer devices.
    """
    layout = layout_of(type_)
    if layout is None or not isinstance(type_, TensorType) or mesh is stage:
        return type_
    dims = tuple(
        _resized(size, shards, mesh, stage)
        for size, shards in zip(
            type_.get_shape(), layout.full_dims(type_.get_num_dims()), strict=True
        )
    )
    partial = tuple(p for p in layout.partial if p[0] in stage.sizes)
    return with_layout(type_, replace(layout, dims=dims, partial=partial))


def _resized(
    size: int, shards: Sequence[Shard], mesh: Mesh, stage: Mesh
) -> tuple[Shard, ...]:
    """
    Returns the split, on the mesh `stage`, of a dimension of `size` elements that
    `shards` splits on `mesh`.
    """
    found: list[Shard] = []
    left, in_chunks = size, False
    for shard in shards:
        left //= mesh.size(shard.axis)
        share = mesh.size(shard.axis) // stage.sizes.get(shard.axis, 1)
        # An axis after one with fewer chunks now splits each of the former chunks.
        run = left if in_chunks and shard.run is None else shard.run
        if shard.axis in stage.sizes:
            found.append(Shard(shard.axis, run and run * share))
        in_chunks |= share > 1 and shard.run is None
    return tuple(found)


Known = dict[tuple[int, str], tuple[Attribute, Attribute]]
"""
The types on stage meshes, by the id of the original type and the name of the mesh. Each
entry also holds the original type, so that its id stays valid.
"""


class TypeCache:
    """
    Converts the types of a program to the meshes of stages, and remembers converted
    types. `convert` converts one type. `same` has the converted types that are not
    split into micro-batches; several caches for different numbers of micro-batches can
    share it.
    """

    def __init__(self, convert: Callable[[Attribute, str], Attribute], same: Known):
        self._convert = convert
        self._known: Known = {}
        self._same = same

    def __call__(self, type_: Attribute, mesh: str) -> Attribute:
        """Returns `type_` converted to the mesh named `mesh`."""
        key = (id(type_), mesh)
        found = self._known.get(key) or self._same.get(key)
        if found is None:
            known = self._known if falls_apart(type_) else self._same
            found = known[key] = (type_, self._convert(type_, mesh))
        return found[1]


class FoldedTypes:
    """
    Converts the types of a program over micro-batches to the meshes of stages. `shapes`
    has the axes of the stages' meshes by name, if they differ from the axes of the
    program's mesh. `before` has the types of the same program for a different number of
    micro-batches, if they are known.

    - `type`: converts to the type of one micro-batch;
    - `whole`: converts to the type of all micro-batches together;
    - `moved`: converts the type of one micro-batch to the mesh of another stage with the
      same axes.
    """

    def __init__(
        self, mesh: Mesh, shapes: Mapping[str, Axes], before: FoldedTypes | None = None
    ):
        self.shapes = shapes
        time = mesh.axes[:1]
        meshes = {n: Mesh(mesh.name, (*time, *axes), ()) for n, axes in shapes.items()}

        def one(type_: Attribute, name: str) -> Attribute:
            own = meshes.get(name, mesh)
            return micro_batch_type(resized_type(type_, mesh, own), own, name)

        def whole(type_: Attribute, name: str) -> Attribute:
            own = meshes.get(name, mesh)
            return whole_type(resized_type(type_, mesh, own), own, name)

        self._same: tuple[Known, Known] = before._same if before else ({}, {})
        self.type, self.whole = map(TypeCache, (one, whole), self._same)
        self.moved = before.moved if before else TypeCache(moved_type, {})


def falls_apart(type_: Attribute | SSAValue) -> bool:
    """Whether a dimension of the type is split into micro-batches."""
    return any(s.axis == TIME_AXIS for d in (layout_of(type_) or _NONE).dims for s in d)


_NONE = Layout("")


def check_time_first(value: SSAValue, what: Callable[[], str]) -> None:
    """
    Raises DistIRError if a dimension of `value` is split over devices before it is
    split over micro-batches. A micro-batch would then have rows from all over the
    batch. `what` returns the name of the value for the error's message.
    """
    for shards in (layout_of(value) or _NONE).dims:
        if any(shard.axis == TIME_AXIS for shard in shards[1:]):
            raise DistIRError(
                f"pipeline: {what()} is split over {shards[0].axis!r} and then over "
                f"{TIME_AXIS!r}, the axis over time; split it over {TIME_AXIS!r} first "
                f"(run `data-parallel{{axis={TIME_AXIS}}}` before the other passes)"
            )
