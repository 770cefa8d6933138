"""Randomised coordinate descent."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from distir.planning.plans.result import Result, Simulated
from distir.scheduling.tuning.space import Point, TuningSpace

Score = tuple[bool, float]


def score_of(result: Result) -> Score:
    """
    Returns the rank of a result: results that fit are ordered by throughput, others by
    memory.
    """
    if not isinstance(result, Simulated):
        return (False, -inf)
    if result.fits:
        return (True, result.throughput_samples_per_s)
    return (False, -float(result.peak_memory_bytes))


def descend(
    space: TuningSpace, evaluate: Callable[[Point], Result | None], random: Random
) -> None:
    """
    Goes from a random point to the best one along each coordinate in turn, in random order,
    until no coordinate gives a better one; then starts from another random point. Ends when
    `evaluate` returns None, which means that nothing more is to be tried.
    """
    while True:
        point = space.drawn(random)
        result = evaluate(point)
        if result is None:
            return
        best = score_of(result)
        left = random.sample(space.coordinates, len(space.coordinates))
        while left:
            coordinate, before = left.pop(), point
            for other in space.along(before, coordinate):
                result = evaluate(other)
                if result is None:
                    return
                if score_of(result) > best:
                    point, best = other, score_of(result)
            if point != before:
                others = [c for c in space.coordinates if c != coordinate]
                left = random.sample(others, len(others))
