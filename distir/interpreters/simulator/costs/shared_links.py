"""
How collectives that run at the same time share links.

The load of a collective on a level of links is the share of the time in which the
collective keeps the links busy while nothing else runs. The load on the slowest level
is 1, apart from latency. If the loads of two collectives on a level add up to 1 at
most, neither slows the other down. Otherwise there are two rules, which depend on the
order of streams on a device (`distir.interpreters.simulator.engine.streams`):

- a collective that waits behind other collectives gets the rest of each link
  (`left_by`);
- two collectives that run side by side get one half each, or the share that the other
  one does not need (`fair_rates`).
"""

from __future__ import annotations

from functools import lru_cache

from distir.interpreters.simulator.costs.communication import Crossing, Topology

Loads = tuple[tuple[str, float], ...]
"""The loads of a collective, by the name of the level of links."""

_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How often such a collective passes all of its data around the devices."""

_PAIRWISE = frozenset({"all_to_all", "gather", "scatter"})
"""The kinds in which each device exchanges parts with all others."""


def loads_of(kind: str, size: float, seconds: float, crossings: Topology) -> Loads:
    """
    Returns the load of a collective on each level of links. `kind` is the kind of the
    collective, such as `all_gather`; the collective sends `size` bytes over
    `crossings`, and takes `seconds` by itself.
    """
    if seconds <= 0:
        return ()
    return tuple(
        [
            (c.level.name, min(1.0, _busy(kind, size, c, crossings) / seconds))
            for c in crossings
        ]
    )


def _busy(kind: str, size: float, crossing: Crossing, crossings: Topology) -> float:
    """
    Returns the seconds in which a collective keeps the links of the level `crossing`
    busy.
    """
    if kind in _ROUNDS:
        passed = size * (crossing.blocks - 1) / crossing.blocks
        return _ROUNDS[kind] * passed / crossing.block_rate
    if kind in _PAIRWISE:
        peers = (crossing.blocks - 1) * crossing.inner
        return peers / crossings[-1].devices * size / crossing.bandwidth
    return size / crossing.bandwidth


@lru_cache(maxsize=4096)
def left_by(others: Loads, loads: Loads) -> float:
    """
    Returns the speed, from 0 to 1, of a collective with `loads` that waits behind
    collectives with the loads `others` and uses the rest of each link.
    """
    taken = dict(others)
    speeds = [
        (1 - taken[level]) / load for level, load in loads if load and level in taken
    ]
    return min([1.0, *speeds])


@lru_cache(maxsize=4096)
def fair_rates(loads: Loads, others: Loads) -> tuple[float, float]:
    """
    Returns the speeds, from 0 to 1, of two collectives that run side by side: of the
    collective with `loads`, and of the collective with the loads `others`.
    """
    taken = dict(others)
    first = second = 1.0
    for level, load in loads:
        other = taken.get(level, 0.0)
        if load + other <= 1:
            continue
        if other <= 0.5:
            first = min(first, (1 - other) / load)
        elif load <= 0.5:
            second = min(second, (1 - load) / other)
        else:
            first, second = min(first, 0.5 / load), min(second, 0.5 / other)
    return first, second
