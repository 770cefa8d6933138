"""Rules whose factors depend on the shapes, on random shapes."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sharding_harness import Case, sequential
from support.thoroughness import tries

from distir.testing.runs import run_split
from distir.testing.splits import assignments, mesh, partial_assignments, sample

few = settings(max_examples=tries(25), deadline=None)
sizes = st.sampled_from([1, 2, 3, 4, 6, 12])


def numbers(shape) -> np.ndarray:
    return np.arange(prod(shape), dtype=np.float32).reshape(shape) % 11 - 5


def check(case: Case) -> None:
    plain = sequential(case)
    for on in (mesh(a=2, b=3), mesh(a=2, b=2)):
        for assignment in sample(list(assignments(plain.rule, on)), 6, str(case)):
            run_split(plain, on, assignment)
    on = mesh(a=2, b=2)
    for assignment, operands, reduction in sample(
        list(partial_assignments(plain.rule, plain.operands, on))
        or [({}, frozenset(), "sum")],
        3,
        str(case),
    ):
        run_split(plain, on, assignment, operands, reduction)


@st.composite
def groupings(draw: st.DrawFn, primes: list[int]) -> list[int]:
    """A shape with that many elements."""
    shape: list[int] = [1]
    for prime in draw(st.permutations(primes)):
        if draw(st.booleans()):
            shape.append(1)
        shape[-1] *= prime
    return shape


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    primes = draw(st.lists(st.sampled_from([2, 2, 2, 3]), min_size=1, max_size=6))
    return draw(groupings(primes)), draw(groupings(primes))


@few
@given(reshapes())
def test_reshape(shapes):
    source, target = shapes
    check(Case("Reshape", [numbers(source), np.array(target)], {}, frozenset({1})))


@st.composite
def broadcastable(draw: st.DrawFn, rank: int = 3) -> tuple[list[int], list[int]]:
    full = draw(st.lists(sizes, min_size=0, max_size=rank))

    def one() -> list[int]:
        kept = [n if draw(st.booleans()) else 1 for n in full]
        return kept[draw(st.integers(0, len(kept))) :]

    return one(), one()


@few
@given(broadcastable(), st.sampled_from(["Add", "Mul", "Max", "Less"]))
def test_broadcasting(shapes, name):
    a, b = shapes
    check(Case(name, [numbers(a), numbers(b)]))


@few
@given(broadcastable(2), sizes, sizes, sizes)
def test_matmul(batches, i, k, j):
    a, b = batches
    check(Case("MatMul", [numbers((*a, i, k)), numbers((*b, k, j))]))


@few
@given(st.lists(st.sampled_from([0, 2, 3, 4, 6, 12]), min_size=1, max_size=3), sizes)
def test_split_and_concat(parts, other):
    total = sum(parts)
    check(
        Case(
            "Split",
            [numbers((total, other)), np.array(parts)],
            {"axis": 0},
            frozenset({1}),
            len(parts),
        )
    )
    check(Case("Concat", [numbers((other, n)) for n in parts], {"axis": 1}))


@few
@given(
    st.sampled_from([6, 8, 12]),
    st.integers(-14, 14),
    st.integers(-14, 14),
    st.sampled_from([1, 1, 1, 2, -1, -3]),
)
def test_slice(size, start, end, step):
    bounds = [np.array([x]) for x in (start, end, 1, step)]
    case = Case("Slice", [numbers((4, size)), *bounds], {}, frozenset({1, 2, 3, 4}))
    check(case)


@few
@given(
    st.sampled_from([4, 6, 12]),
    st.lists(sizes, max_size=2),
    st.sampled_from([0, 1, -1]),
    st.randoms(use_true_random=False),
)
def test_gather(vocabulary, picked, axis, random):
    shape = [2, 3, 2]
    shape[axis] = vocabulary
    indices = np.array(
        [random.randrange(-vocabulary, vocabulary) for _ in range(prod(picked))],
        dtype=np.int64,
    ).reshape(picked)
    check(Case("Gather", [numbers(shape), indices], {"axis": axis}))
