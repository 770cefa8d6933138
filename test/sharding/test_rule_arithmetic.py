"""Splits of dimensions and of their factors, and what `infer` says about layouts."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sharding_harness import Case, sequential

from distir.dialects.dist import Layout, Shard
from distir.errors import ShardingError
from distir.sharding.layout import shard_indices
from distir.sharding.rule import (
    Factor,
    Rule,
    dim_shards,
    factor_shards,
    infer,
    layout_for,
)
from distir.testing.splits import mesh

MESH = mesh(a=2, b=3, c=2)
SIZES = dict(MESH.axes)


@st.composite
def split_dimensions(draw: st.DrawFn):
    """A dimension of some factors and a legal split of these factors."""
    sizes = draw(st.lists(st.sampled_from([2, 3, 4, 6, 12]), min_size=1, max_size=3))
    assignment: dict[int, tuple[Shard, ...]] = {}
    left = list(sizes)
    for axis in draw(st.permutations(list(SIZES))):
        fitting = [f for f, n in enumerate(left) if n % SIZES[axis] == 0]
        if not fitting or not draw(st.booleans()):
            continue
        factor = draw(st.sampled_from(fitting))
        local = left[factor] // SIZES[axis]
        runs = [r for r in range(1, local) if local % r == 0]
        run = draw(st.sampled_from([None, *runs]))
        assignment[factor] = (*assignment.get(factor, ()), Shard(axis, run))
        left[factor] = local
    return sizes, assignment


@given(split_dimensions())
def test_factor_shards_inverts_dim_shards(case):
    sizes, assignment = case
    rule = Rule(tuple(Factor(n) for n in sizes))
    dim = tuple(range(len(sizes)))
    shards = dim_shards(dim, rule, assignment, MESH)
    assert factor_shards(shards, dim, rule, MESH) == assignment


@given(split_dimensions())
def test_a_dimension_splits_as_its_factors_do(case):
    sizes, assignment = case
    rule = Rule(tuple(Factor(n) for n in sizes))
    shards = dim_shards(tuple(range(len(sizes))), rule, assignment, MESH)
    positions = np.arange(prod(sizes)).reshape(sizes)
    for coordinates in MESH.coordinates:
        held = [
            shard_indices(n, assignment.get(f, ()), MESH, coordinates)
            for f, n in enumerate(sizes)
        ]
        expected = positions[np.ix_(*held)].reshape(-1)
        got = shard_indices(prod(sizes), shards, MESH, coordinates)
        np.testing.assert_array_equal(got, expected)


@given(
    st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=3),
    st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1, max_size=2),
    st.data(),
)
def test_a_split_is_refused_or_right(sizes, axes, data):
    """Whatever split of a dimension `factor_shards` accepts, it explains correctly."""
    rule = Rule(tuple(Factor(n) for n in sizes))
    dim = tuple(range(len(sizes)))
    left = prod(sizes)
    shards: list[Shard] = []
    for axis in axes:
        if left % SIZES[axis]:
            return
        left //= SIZES[axis]
        runs = [r for r in range(1, left) if left % r == 0]
        shards.append(Shard(axis, data.draw(st.sampled_from([None, *runs]))))
    split = factor_shards(shards, dim, rule, MESH)
    if split is None:
        return
    again = dim_shards(dim, rule, split, MESH)
    for coordinates in MESH.coordinates:
        np.testing.assert_array_equal(
            shard_indices(prod(sizes), shards, MESH, coordinates),
            shard_indices(prod(sizes), again, MESH, coordinates),
        )


def test_an_axis_across_two_factors_is_refused():
    rule = Rule((Factor(2), Factor(6)))
    assert factor_shards((Shard("a"),), (0, 1), rule, MESH) == {0: (Shard("a"),)}
    assert factor_shards((Shard("b"),), (0, 1), rule, MESH) is None
    assert factor_shards((Shard("b", 2),), (0, 1), rule, MESH) == {1: (Shard("b"),)}
    assert factor_shards((Shard("b", 1),), (0, 1), rule, MESH) == {1: (Shard("b", 1),)}


def f(*shape: int):
    return np.zeros(shape, np.float32)


def rule_of(name: str, *inputs, constants=(), results=1, **attributes) -> Rule:
    case = Case(name, inputs, attributes, frozenset(constants), results)
    return sequential(case).rule


def whole(rule: Rule) -> list[Layout]:
    return [Layout("m")] * len(rule.operands)


def test_fused_qkv_splits_over_heads_by_run_length():
    """GPT-2's `[batch, 3 x width]` product, cut in three, then cut into heads."""
    heads, size, width = 4, 8, 32
    on = mesh(t=2)
    split = rule_of(
        "Split",
        f(2, 3 * width),
        np.array([width] * 3),
        constants=(1,),
        results=3,
        axis=-1,
    )
    by_head = rule_of(
        "Reshape", f(2, width), np.array([2, heads, size]), constants=(1,)
    )
    run = heads // 2 * size
    fused = Layout("m", ((), (Shard("t", run),)))
    results = infer(split, [fused, Layout("m")], on).results
    assert results == (Layout("m", ((), (Shard("t"),))),) * 3
    (out,) = infer(by_head, [results[0], Layout("m")], on).results
    assert out == Layout("m", ((), (Shard("t"),), ()))
    # The plain contiguous split would give a device all of Q and half of K.
    with pytest.raises(ShardingError):
        infer(split, [Layout("m", ((), (Shard("t"),))), Layout("m")], on)
    # Back from the heads: the fused dimension follows from the split of the heads.
    head = split.operands[0][1][-1]
    assert layout_for(split.operands[0], split, {head: (Shard("t"),)}, on) == fused


def test_fused_grouped_query_attention():
    """Parts of 4, 1 and 1 pieces: the piece splits, whole parts do not."""
    on = mesh(t=2)
    split = rule_of(
        "Split", f(2, 48), np.array([32, 8, 8]), constants=(1,), results=3, axis=1
    )
    layout = Layout("m", ((), (Shard("t", 4),)))
    q, k, v = infer(split, [layout, Layout("m")], on).results
    assert q == Layout("m", ((), (Shard("t", 4),)))
    assert k == v == Layout("m", ((), (Shard("t"),)))


def test_reduction_leaves_partial_sums():
    on = mesh(d=2, t=2)
    rule = rule_of("MatMul", f(8, 4), f(4, 6))
    x = Layout("m", ((Shard("d"),), (Shard("t"),)))
    w = Layout("m", ((Shard("t"),), ()))
    (out,) = infer(rule, [x, w], on).results
    assert out == Layout("m", ((Shard("d"),), ()), (("t", "sum"),))


@pytest.mark.parametrize(
    ("name", "inputs", "flops"),
    [
        ("MatMul", (f(8, 4), f(4, 6)), 2 * 8 * 4 * 6),
        ("MatMul", (f(3, 8, 4), f(3, 4, 1)), 2 * 3 * 8 * 4),
        ("Gemm", (f(8, 4), f(4, 6), f(6)), 2 * 8 * 4 * 6),
        ("Conv", (f(2, 3, 8, 8), f(5, 3, 3, 3)), 2 * 2 * 5 * 3 * 6 * 6 * 9),
        (
            "Attention",
            (f(2, 4, 8, 3), f(2, 4, 6, 3), f(2, 4, 6, 5)),
            2 * 2 * 4 * 48 * 8,
        ),
        ("Add", (f(8, 4), f(8, 4)), 0),
    ],
)
def test_flops(name, inputs, flops):
    assert rule_of(name, *inputs).flops == flops


def error(rule: Rule, layouts, on=MESH) -> str:
    with pytest.raises(ShardingError) as raised:
        infer(rule, layouts, on)
    return str(raised.value)


def test_errors_name_the_operand_and_the_expected_layout():
    a, b = Shard("a"), Shard("b")
    matmul = rule_of("MatMul", f(6, 4), f(4, 6))
    whole = Layout("m")
    assert "operand 1" in error(matmul, [Layout("m", ((), (a,))), whole])
    assert "expected layout <@m, [{a}, {}]>" in error(
        matmul, [Layout("m", ((), (a,))), whole]
    )
    softmax = rule_of("Softmax", f(6, 4))
    message = error(softmax, [Layout("m", ((b,), (a,)))])
    assert "dimension 1" in message and "needs that dimension whole" in message
    assert "expected layout <@m, [{b}, {}]>" in message
    gemm = rule_of("Gemm", f(6, 4), f(4, 6), f(6))
    message = error(gemm, [Layout("m", ((), (a,))), Layout("m", ((a,), ())), whole])
    assert "decompose it first" in message
    add = rule_of("Add", f(6, 4), f(6, 4))
    partial = Layout("m", (), (("a", "sum"),))
    message = error(add, [partial, whole])
    assert "partial over 'a'" in message and "expected layout <@m>" in message
    message = error(rule_of("Exp", f(6, 4)), [partial])
    assert "operand 0" in message and "expected layout <@m>" in message
    mixed = [partial, Layout("m", (), (("a", "max"),))]
    assert "partial" in error(add, mixed)
    message = error(matmul, [Layout("m", ((a,), ())), Layout("m", ((), (a,)))])
    assert "already splits another dimension" in message
    assert "expected layout <@m>" in message
    message = error(matmul, [partial, Layout("m", ((), (a,)))])
    assert "partial over" in message and "expected layout <@m>" in message
    assert "expected @m" in error(softmax, [Layout("other")])
    reshape = rule_of("Reshape", f(4, 6), np.array([6, 4]), constants=(1,))
    message = error(reshape, [Layout("m", ((Shard("a"), Shard("c")), ())), whole])
    assert "operand 0" in message


def test_partial_values_pass_linear_ops():
    on = mesh(t=2)
    partial = Layout("m", (), (("t", "sum"),))
    extremum = Layout("m", (), (("t", "max"),))
    for rule, layouts, result in (
        (rule_of("Add", f(4), f(4)), [partial, partial], partial),
        (rule_of("Mul", f(4), f(4)), [Layout("m"), partial], partial),
        (rule_of("Max", f(4), f(4)), [extremum, Layout("m")], extremum),
        (rule_of("Transpose", f(4, 2)), [extremum], extremum),
        (rule_of("ReduceSum", f(4, 2)), [partial], partial),
    ):
        assert infer(rule, layouts, on).results == (result,)


def test_two_reductions_at_once_are_refused():
    """A sum over one axis and a maximum over another do not commute."""
    on = mesh(d=2, t=2)
    rule = rule_of("Where", np.zeros(4, bool), f(4), f(4))
    mixed = Layout("m", (), (("d", "sum"), ("t", "max")))
    assert "order matters" in error(rule, [Layout("m"), mixed, mixed], on)


def test_ops_without_a_rule_are_replicated():
    rule = rule_of("NonZero", f(4, 2))
    assert (
        rule
        == Rule(
            operands=((), ()),
        )
        or not rule.factors
    )
    assert infer(rule, whole(rule), MESH).results == (Layout("m"),)
    assert "operand 0" in error(rule, [Layout("m", ((Shard("a"),), ()))])


def test_reshape_refinement():
    for source, target, factors in (
        ((24,), (2, 12), [2, 12]),
        ((2, 12), (24,), [2, 12]),
        ((2, 6, 12), (2, 6, 3, 4), [2, 6, 3, 4]),
        ((6, 4), (2, 12), [2, 3, 4]),
        ((1, 6, 1), (6,), [6]),
    ):
        rule = rule_of("Reshape", f(*source), np.array(target), constants=(1,))
        assert [x.size for x in rule.factors] == factors
        assert {x.kind for x in rule.factors} == {"parallel"}
    rule = rule_of("Reshape", f(2, 3), np.array([3, 2]), constants=(1,))
    assert {x.kind for x in rule.factors} == {"replicate"}


def test_every_pair_of_coordinates_is_its_own_shard():
    """Two axes on one dimension hold disjoint parts that cover it."""
    shards = (Shard("b", 2), Shard("a"))
    held = [
        tuple(shard_indices(12, shards, MESH, {"a": i, "b": j, "c": 0}))
        for i, j in product(range(2), range(3))
    ]
    assert sorted(sum(held, ())) == list(range(12))
