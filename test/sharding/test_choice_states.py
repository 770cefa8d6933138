"""The states of the choice of layouts, against a plain implementation."""

from __future__ import annotations

import random
from math import inf

import pytest

from distir.sharding.choice.choices import OpChoice
from distir.sharding.choice.placement import FREE, WHOLE, Placement
from distir.sharding.choice.prices import gather_price, reduce_price
from distir.sharding.choice.states import (
    MAX_COMPARED,
    MAX_STATES,
    NOTHING,
    Available,
    Option,
    States,
    conversion_price,
)

SPLIT = Placement("split", 1)
PARTIAL = Placement("partial", monoid="sum")
WAYS: list[Available] = [
    *(frozenset([p]) for p in (WHOLE, FREE, SPLIT, PARTIAL, Placement("split", 0, 4))),
    frozenset([WHOLE, SPLIT]),
    frozenset([PARTIAL, WHOLE]),
]
PARTS = 4

Plain = dict[tuple[Available, ...], float]


def reaches(
    have: tuple[Available, ...], want: tuple[Available, ...], sizes: list[float]
) -> float:
    """The price of coming from one state to another."""
    prices = zip(sizes, have, want, strict=True)
    return sum(conversion_price(size, h, w, PARTS) for size, h, w in prices if h != w)


def plain_step(
    before: Plain,
    columns: list[int],
    options: dict[tuple[Available, ...], list[Option]],
    sizes: list[float],
) -> Plain:
    """What `States.advance` says, one state at a time."""
    reached: list[tuple[float, tuple[Available, ...]]] = []
    for state, cost in before.items():
        for option in options[tuple(state[c] for c in columns)]:
            after = list(state)
            for column, available in option.changes.items():
                after[column] = available
            reached.append((cost + option.price, tuple(after)))
    kept: Plain = {}
    for cost, state in sorted(reached, key=lambda entry: entry[0]):
        cheapest = list(kept.items())[:MAX_COMPARED]
        if state in kept or any(
            cost - c >= reaches(s, state, sizes) for s, c in cheapest
        ):
            continue
        kept[state] = cost
        if len(kept) == MAX_STATES:
            break
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_steps(seed: int):
    """Random ops on random values: the same states, costs and paths."""
    rng = random.Random(seed)
    width = rng.randint(3, 9)
    sizes = [float(2 ** rng.randint(0, 12)) for _ in range(width)]
    states, plain = States(PARTS), {(NOTHING,) * 0: 0.0}
    start = [rng.choice(WAYS) for _ in range(width)]
    for column, available in enumerate(start):
        states.add_value(column, sizes[column], available)
    plain = {tuple(start): 0.0}
    for _ in range(12):
        columns = rng.sample(range(width), 2)
        found = states.groups(columns)
        groups = {group: i for i, group in enumerate(dict.fromkeys(found))}
        options = {
            group: [
                Option(
                    OpChoice(None, (), ()),  # type: ignore[arg-type]
                    # Whole numbers, so that sums are exact and ties are frequent.
                    float(rng.randint(0, 40) * 64),
                    {column: rng.choice(WAYS) for column in columns},
                )
                for _ in range(rng.randint(1, 4))
            ]
            for group in groups
        }
        plain = plain_step(plain, columns, options, sizes)
        states.advance([groups[g] for g in found], list(options.values()))
        assert [node.cost for node in states.nodes] == list(plain.values())
        assert states.groups(range(width)) == list(plain)
    for node in states.nodes:
        assert len(node.path()) == 12


def test_prices():
    """What is there costs nothing; splitting is nothing that a value can wait for."""
    whole, split, partial = (frozenset([p]) for p in (WHOLE, SPLIT, PARTIAL))
    assert conversion_price(64, split, whole, PARTS) == gather_price(64, PARTS)
    assert conversion_price(64, partial, whole, PARTS) == reduce_price(64, PARTS)
    assert conversion_price(64, whole, split, PARTS) == inf
    assert conversion_price(0, whole, split, PARTS) == inf
    assert conversion_price(64, frozenset([FREE]), split, PARTS) == 0
    assert conversion_price(64, whole | split, split, PARTS) == 0


def test_an_empty_value_is_not_split_for_nothing():
    """Impossible stays impossible where there are no bytes."""
    states = States(PARTS)
    states.add_value(0, 0.0, frozenset([WHOLE]))
    choice = OpChoice(None, (), ())  # type: ignore[arg-type]
    states.advance(
        [0],
        [
            [
                Option(choice, 1.0, {0: frozenset([WHOLE])}),
                Option(choice, 2.0, {0: frozenset([SPLIT])}),
            ]
        ],
    )
    assert len(states.nodes) == 2
