"""Changes of layout: they arrive, keep the value, and no cheaper chain exists."""

from collections.abc import Iterator
from itertools import permutations, product
from math import inf, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_programs import Draw
from support.thoroughness import tries
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from distir.dialects.device import MeshOp
from distir.dialects.dist import Layout, ReshardOp, Shard, with_layout
from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.passes.lower_reshard import LowerReshardPass
from distir.sharding.layout import canonical, fits, local_shape
from distir.sharding.mesh import Mesh
from distir.sharding.reshard import StepKind, bytes_moved, plan_reshard, reshard_bytes
from distir.sharding.verification import verify_distribution

Shape = tuple[int, ...]


def mesh(**axes: int) -> Mesh:
    return Mesh("m", tuple(axes.items()), tuple(range(prod(axes.values()))))


def layouts(shape: Shape, on: Mesh, runs: tuple[int | None, ...]) -> list[Layout]:
    """Every layout of a tensor: axes anywhere, in any order, with these runs."""
    rank = len(shape)
    found: dict[Layout, None] = {}
    names = [axis for axis, _ in on.axes]
    for places in product([None, "sum", *range(rank)], repeat=len(names)):
        partial = tuple(
            (a, "sum") for a, p in zip(names, places, strict=True) if p == "sum"
        )
        orders = [
            permutations(a for a, p in zip(names, places, strict=True) if p == dim)
            for dim in range(rank)
        ]
        for dims in product(*orders):
            for lengths in product(runs, repeat=sum(len(dim) for dim in dims)):
                rest = iter(lengths)
                split = tuple(tuple(Shard(a, next(rest)) for a in d) for d in dims)
                layout = Layout("m", split, partial)
                if fits(shape, layout, on):
                    found[canonical(shape, layout, on)] = None
    return list(found)


def step_between(
    before: Layout, after: Layout, rank: int
) -> tuple[StepKind, str] | None:
    """The collective over one axis that leads from one layout to the other, if any."""
    old, new = before.full_dims(rank), after.full_dims(rank)
    less = [d for d in range(rank) if len(new[d]) < len(old[d])]
    more = [d for d in range(rank) if len(new[d]) > len(old[d])]
    if len(less) > 1 or len(more) > 1:
        return None
    removed = {old[d][-1].axis for d in less if old[d][:-1] == new[d]}
    added = {new[d][-1].axis for d in more if new[d][:-1] == old[d]}
    same = all(old[d] == new[d] for d in range(rank) if d not in (*less, *more))
    reduced = set(before.partial_axes) - set(after.partial_axes)
    if not same or (len(removed), len(added)) != (len(less), len(more)):
        return None
    if set(after.partial_axes) - set(before.partial_axes):
        return None
    match tuple(reduced), tuple(removed), tuple(added):
        case (axis,), (), ():
            return "all_reduce", axis
        case (axis,), (), (other,) if axis == other:
            return "reduce_scatter", axis
        case (), (axis,), ():
            return "all_gather", axis
        case (), (axis,), (other,) if axis == other:
            return "all_to_all", axis
        case (), (), (axis,) if axis not in (*before.split_axes, *before.partial_axes):
            return "slice", axis
        case _:
            return None


def towards(before: Layout, step: Layout, after: Layout, rank: int) -> bool:
    """Whether a step splits dimensions only as the goal does."""
    return all(
        len(new) <= len(old) or goal[: len(new)] == new
        for old, new, goal in zip(
            before.full_dims(rank),
            step.full_dims(rank),
            after.full_dims(rank),
            strict=True,
        )
    )


@pytest.mark.parametrize(
    ("shape", "on", "runs"),
    [
        ((8,), mesh(d=2, t=4), (None, 1)),
        ((4, 8), mesh(d=2, t=2), (None, 1)),
        ((4, 4, 2), mesh(d=2, t=2), (None,)),
        ((6, 4), mesh(d=3, t=2), (None,)),
    ],
)
def test_no_chain_of_up_to_three_collectives_is_cheaper(
    shape: Shape, on: Mesh, runs: tuple[int | None, ...]
) -> None:
    rank = len(shape)
    known = layouts(shape, on, runs)
    sizes = {layout: prod(local_shape(shape, layout, on)) for layout in known}
    steps: dict[Layout, list[tuple[Layout, float]]] = {layout: [] for layout in known}
    for before, after in product(known, known):
        step = step_between(before, after, rank)
        if step is not None:
            kind, axis = step
            price = bytes_moved(kind, sizes[before], sizes[after], on.size(axis))
            steps[before].append((after, price))

    def chains(before: Layout, after: Layout, length: int) -> Iterator[float]:
        if before == after:
            yield 0.0
        elif length:
            for layout, price in steps[before]:
                if towards(before, layout, after, rank):
                    for rest in chains(layout, after, length - 1):
                        yield price + rest

    for before, after in product(known, known):
        best = min(chains(before, after, 3), default=inf)
        if set(after.partial) <= set(before.partial):
            assert reshard_bytes(before, after, shape, on, 1) <= best + 1e-6
        else:
            assert reshard_bytes(before, after, shape, on, 1) == inf
            with pytest.raises(DistIRError, match="cannot become partial"):
                plan_reshard(before, after, shape, on)


def test_prices() -> None:
    """12 bytes on each of 4 devices."""
    assert bytes_moved("all_reduce", 12, 12, 4) == 2 * 9
    assert bytes_moved("reduce_scatter", 12, 3, 4) == 9
    assert bytes_moved("all_gather", 3, 12, 4) == 9
    assert bytes_moved("all_to_all", 12, 12, 4) == 9
    assert bytes_moved("slice", 12, 3, 4) == 0
    assert bytes_moved("send", 12, 12, 1) == 12


CASES = [
    ((8, 12), mesh(d=2, t=2)),
    ((8,), mesh(d=2, t=2, e=2)),
    ((6, 4, 2), mesh(d=3, t=2)),
    ((8, 8), mesh(d=2, t=2, e=2)),
]


@st.composite
def changes(draw: Draw) -> tuple[Shape, Mesh, Layout, Layout]:
    shape, on = draw(st.sampled_from(CASES))
    known = layouts(shape, on, (None, 1))
    before = draw(st.sampled_from(known))
    possible = [x for x in known if set(x.partial) <= set(before.partial)]
    return shape, on, before, draw(st.sampled_from(possible))


@settings(max_examples=tries(150), deadline=None)
@given(changes())
def test_the_value_stays(change: tuple[Shape, Mesh, Layout, Layout]) -> None:
    """The collectives verify one by one and lead to the same value in the new layout."""
    shape, on, before, after = change
    plain = TensorType(f32, shape)
    types = with_layout(plain, before), with_layout(plain, after)
    block = Block(arg_types=[types[0]])
    reshard = ReshardOp(block.args[0], types[1])
    # A partial result would not be allowed to leave the entry function.
    whole = ReshardOp(reshard.result, with_layout(plain, Layout("m", after.dims)))
    block.add_ops([reshard, whole, ReturnOp(whole)])
    type_ = FunctionType.from_lists([types[0]], [whole.result.type])
    mesh_op = MeshOp("m", "c", list(on.axes), on.devices)
    module = ModuleOp([mesh_op, FuncOp("main", type_, Region(block))])
    LowerReshardPass().apply(Context(), module)
    module.verify()
    verify_distribution(module)
    assert not any(isinstance(op, ReshardOp) for op in module.walk())
    values = np.arange(prod(shape), dtype=np.float32).reshape(shape)
    (result,) = run_program(module, [values])
    np.testing.assert_array_equal(result, values)


def test_gathers_that_interleave_stay_apart() -> None:
    """One collective over both axes could not put runs of 4 into halves of 48."""
    mesh = Mesh("mesh", (("d", 2), ("t", 2)), (0, 1, 2, 3))
    before = Layout("mesh", ((Shard("d"), Shard("t", 4)),))
    steps = plan_reshard(before, Layout("mesh"), (96,), mesh)
    assert [step.axes for step in steps] == [("t",), ("d",)]
    nested = Layout("mesh", ((Shard("d"), Shard("t")),))
    steps = plan_reshard(nested, Layout("mesh"), (96,), mesh)
    assert [step.axes for step in steps] == [("d", "t")]
