"""Values that go to a mesh of another shape arrive whole, each element once."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_programs import Draw
from support.thoroughness import tries

from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.interpreters.reference_communication import received
from distir.interpreters.sharded import Array, Sharded
from distir.sharding.layout import canonical, fits, local_shape
from distir.sharding.mesh import Mesh
from distir.sharding.sends import check_send, plan_send

AXES = [(), (("d", 2),), (("t", 4),), (("d", 2), ("t", 2)), (("d", 2), ("t", 3))]
SHAPE = (24, 12)


def mesh(name: str, axes: tuple[tuple[str, int], ...], first: int = 0) -> Mesh:
    size = prod(n for _, n in axes)
    return Mesh(name, axes, tuple(range(first, first + size)))


def drawn(draw: Draw, on: Mesh) -> Layout:
    """Returns a layout with axes of the mesh anywhere, in any runs."""
    dims: list[list[Shard]] = [[], []]
    terms: list[tuple[str, str]] = []
    for axis, _ in draw(st.permutations(on.axes)):
        place = draw(st.sampled_from([0, 1, None, "sum"]))
        if place == "sum":
            terms.append((axis, "sum"))
        elif isinstance(place, int):
            run = draw(st.sampled_from([None, 1, 2]))
            dims[place].append(Shard(axis, run))
    found = Layout(on.name, tuple(map(tuple, dims)), tuple(terms))
    return canonical(SHAPE, found, on) if fits(SHAPE, found, on) else Layout(on.name)


def held(layout: Layout, on: Mesh) -> Sharded:
    """Returns a value on that mesh: numbers that are equal where devices hold the same."""
    random, shape = np.random.default_rng(0), local_shape(SHAPE, layout, on)
    known: dict[tuple[int, ...], Array] = {}
    shards: list[Array] = []
    for at in on.coordinates:
        key = tuple(at[a] for a in (*layout.split_axes, *layout.partial_axes))
        if key not in known:
            known[key] = random.integers(0, 1000, shape)
        shards.append(known[key])
    return Sharded(tuple(shards), SHAPE, layout, on)


@settings(max_examples=tries(300), deadline=None)
@given(st.data())
def test_values_stay_the_same(data: st.DataObject) -> None:
    source = mesh("a", data.draw(st.sampled_from(AXES)))
    first = data.draw(st.sampled_from([0, 2, len(source.devices)]))
    target = mesh("b", data.draw(st.sampled_from(AXES)), first)
    before = drawn(data.draw, source)
    after = drawn(data.draw, target)
    if source.axes == target.axes:
        after = Layout("b", before.dims, before.partial)
    value = held(before, source)
    shards = received(value, after, target)
    sent = Sharded(tuple(shards), SHAPE, after, target)
    sent.check("%x")
    np.testing.assert_array_equal(sent.assemble(), value.assemble())
    rounds = plan_send(SHAPE, before, source, after, target)
    for pieces in rounds:
        busy = [
            d for p in pieces if p.sender != p.receiver for d in (p.sender, p.receiver)
        ]
        assert len(busy) == len(set(busy))
    # Without terms, each device receives its part and no more.
    if not before.partial and not after.partial:
        for device in target.devices:
            own = sum(p.elements for ps in rounds for p in ps if p.receiver == device)
            assert own == prod(local_shape(SHAPE, after, target))


def test_devices_that_have_the_same_take_turns() -> None:
    source, target = mesh("a", (("d", 2), ("t", 2))), mesh("b", (("t", 4),), 4)
    rows = Layout("a", ((Shard("d"),), ()))
    rounds = plan_send(SHAPE, rows, source, Layout("b"), target)
    pairs = [[(p.sender, p.receiver) for p in pieces] for pieces in rounds]
    assert pairs == [
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        [(2, 4), (3, 5), (0, 6), (1, 7)],
    ]


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_maximum_has_no_term_for_a_device_that_gets_none(reduction: str) -> None:
    source, target = mesh("a", ()), mesh("b", (("t", 4),), 1)
    with pytest.raises(DistIRError, match="cannot make the terms of"):
        check_send(Layout("a"), source, Layout("b", (), (("t", reduction),)), target)


def test_a_send_between_meshes_with_the_same_axes_keeps_the_layout() -> None:
    source, target = mesh("a", (("t", 4),)), mesh("b", (("t", 4),), 4)
    split = Layout("a", ((Shard("t"),), ()))
    with pytest.raises(DistIRError, match=r"expected <@b, \[\{t\}, \{\}\]>, got <@b>"):
        check_send(split, source, Layout("b"), target)
