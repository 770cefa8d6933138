"""
Every collective between random layouts: what the devices hold afterwards is what the
result's layout says of the global tensor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.ir import Block

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    ReduceScatterOp,
    SliceOp,
)
from distir.dialects.device import MeshOp
from distir.dialects.dist import Layout, LayoutAttr, Shard, layout_of
from distir.interpreters.reference import ReferenceInterpreter
from distir.interpreters.sharded import Sharded, from_shards
from distir.sharding.layout import canonical, local_shape, take_shard
from distir.sharding.mesh import Mesh, meshes

AXES = (("a", 2), ("b", 3), ("c", 2))
MODULE = ModuleOp([MeshOp("m", "box", AXES, range(12))])
MESH: Mesh = meshes(MODULE)["m"]


@st.composite
def shards(draw: st.DrawFn, size: int, axes: tuple[str, ...]) -> tuple[Shard, ...]:
    """A split of that many elements over these axes, with run lengths."""
    out: list[Shard] = []
    for axis in axes:
        count = MESH.size(axis)
        runs = [r for r in range(1, size // count + 1) if size % (r * count) == 0]
        out.append(Shard(axis, draw(st.sampled_from(runs))))
        size //= count
    return tuple(out)


@st.composite
def cases(draw: st.DrawFn) -> tuple[type, tuple[str, ...], Layout, Layout]:
    """An op, its axes, and layouts before and after of a 24 x 24 x 24 tensor."""
    order = draw(st.permutations([axis for axis, _ in AXES]))
    count = draw(st.integers(1, 2))
    over, others = tuple(order[:count]), order[count:]
    places = {
        axis: draw(st.sampled_from([None, 0, 1, 2, "partial"])) for axis in others
    }
    dims = [
        draw(shards(24, tuple(a for a in others if places[a] == d))) for d in range(3)
    ]
    partial = tuple((a, "sum") for a in others if places[a] == "partial")
    base = Layout("m", tuple(dims), partial)
    first, second = draw(st.permutations(range(3)))[:2]

    def split(layout: Layout, dim: int) -> Layout:
        left = local_shape((24, 24, 24), layout, MESH)[dim]
        return layout.with_dim(dim, (*layout.dim(dim), *draw(shards(left, over))), 3)

    terms = replace(base, partial=(*base.partial, *((a, "sum") for a in over)))
    kind, before, after = draw(
        st.sampled_from(
            [
                (AllReduceOp, terms, base),
                (ReduceScatterOp, terms, split(base, first)),
                (AllGatherOp, split(base, first), base),
                (AllToAllOp, split(base, first), split(base, second)),
                (SliceOp, base, split(base, first)),
            ]
        )
    )
    shape = (24, 24, 24)
    return kind, over, canonical(shape, before, MESH), canonical(shape, after, MESH)


@settings(deadline=None)
@given(cases(), st.integers(0, 2**32 - 1))
def test_collective(
    case: tuple[type[CollectiveOp], tuple[str, ...], Layout, Layout],
    seed: int,
) -> None:
    kind, over, before, after = case
    type_before = TensorType(f32, (24, 24, 24), LayoutAttr(before))
    type_after = TensorType(f32, (24, 24, 24), LayoutAttr(after))
    block = Block(arg_types=[type_before])
    op = kind(block.args[0], over, type_after)
    op.verify()
    source = random_value(type_before, seed)
    (result,) = ReferenceInterpreter(MODULE).run_op(op, (source,))
    assert layout_of(op.result) == result.layout
    result.check("result")
    np.testing.assert_array_equal(result.assemble(), source.assemble())
    # Partial sums over other axes are not touched: the terms stay where they are.
    for axis, _ in after.partial:
        for coordinate in range(MESH.size(axis)):
            kept = [
                take_terms(value, axis, coordinate).assemble()
                for value in (source, result)
            ]
            np.testing.assert_array_equal(*kept)


def random_value(type_: TensorType, seed: int) -> Sharded:
    """Whole numbers, so that sums are exact; terms of partial sums are random too."""
    rng = np.random.default_rng(seed)
    layout = layout_of(type_)
    assert layout is not None
    whole = layout.without_partial(layout.partial_axes)
    terms: dict[tuple[int, ...], np.ndarray] = {}
    parts: list[np.ndarray] = []
    for at in MESH.coordinates:
        key = tuple(at[axis] for axis in layout.partial_axes)
        if key not in terms:
            terms[key] = rng.integers(-9, 10, type_.get_shape()).astype(np.float32)
        parts.append(take_shard(terms[key], whole, MESH, at))
    return from_shards(parts, type_, {"m": MESH})


def take_terms(value: Sharded, axis: str, coordinate: int) -> Sharded:
    """The value without the terms of other coordinates along a partial axis."""
    kept = [
        shard if at[axis] == coordinate else np.zeros_like(shard)
        for shard, at in zip(value.shards, MESH.coordinates, strict=True)
    ]
    return replace(value, shards=tuple(kept))
