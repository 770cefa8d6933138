"""Randomised coordinate descent."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from distir.planning.result import Result, Simulated
from distir.scheduling.tuning.space import Point, TuningSpace

Worth = tuple[bool, float]


def worth(result: Result) -> Worth:
    """How good a result is: what fits, by its throughput; what does not, by its memory."""
    if not isinstance(result, Simulated):
        return (False, -inf)
    if result.fits:
        return (True, result.throughput_samples_per_s)
    return (False, -float(result.peak_memory_bytes))


def descend(
    space: TuningSpace, evaluate: Callable[[Point], Result | None], random: Random
) -> None:
    """
    Goes from a random point to the best along one coordinate after the other, in random order,
    until none is better along any; then again from another point, and so on. It ends when
    `evaluate` gives None: nothing more is to be tried.
    """
    while True:
        point = space.drawn(random)
        result = evaluate(point)
        if result is None:
            return
        best = worth(result)
        left = random.sample(space.coordinates, len(space.coordinates))
        while left:
            coordinate, before = left.pop(), point
            for other in space.along(before, coordinate):
                result = evaluate(other)
                if result is None:
                    return
                if worth(result) > best:
                    point, best = other, worth(result)
            if point != before:
                others = [c for c in space.coordinates if c != coordinate]
                left = random.sample(others, len(others))
