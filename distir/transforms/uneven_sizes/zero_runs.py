"""
The passage of the zeros of a padded dimension through an op, by the op's sharding rule.

A dimension is padded in runs: 14 heads of 64 features, in two groups of 7 heads with an
eighth head of zeros each, are `((448, 64), (448, 64))`. A reshape to heads and features
turns that into `((7, 1), (7, 1))`; a product with the dimension passes it on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from distir.program.source_forms import Runs, elements_in, size_of
from distir.sharding.rule import Dim, Rule


class Zeros(NamedTuple):
    """The dimension of a value that is padded, and how."""

    dim: int
    runs: Runs

    def shape(self, before: Sequence[int]) -> tuple[int, ...]:
        """Returns the padded shape of a value that had the shape `before`."""
        sizes = list(before)
        sizes[self.dim] = size_of(self.runs)
        return tuple(sizes)


class PassedZeros(NamedTuple):
    """The padding of each operand and each result of an op; None for those without."""

    operands: list[Zeros | None]
    results: list[Zeros | None]


def scaled(runs: Runs, by: int) -> Runs:
    """Returns the runs of a dimension each of whose elements has become `by` elements."""
    return tuple((count * by, zeros * by) for count, zeros in runs)


def joined(runs: Runs) -> Runs:
    """Returns the same runs, those without zeros behind them joined with the next."""
    found: list[tuple[int, int]] = []
    for count, zeros in runs:
        if found and not found[-1][1]:
            found[-1] = (found[-1][0] + count, zeros)
        else:
            found.append((count, zeros))
    return tuple(found)


def passed(rule: Rule, of_result: bool, index: int, zeros: Zeros) -> PassedZeros | None:
    """
    Returns how the operands and results of an op with that rule are padded, if the operand
    or result at `index` has these zeros; None if the rule does not say so.
    """
    own = (rule.results if of_result else rule.operands)[index]
    core = _core(own[zeros.dim], rule, zeros.runs)
    if core is None:
        return None
    factors, runs = core
    sides: list[list[Zeros | None]] = []
    for side in (rule.operands, rule.results):
        found: list[Zeros | None] = []
        for dims in side:
            places = [d for d, dim in enumerate(dims) if set(dim) & set(factors)]
            if len(places) > 1:
                return None
            if not places:
                found.append(None)
                continue
            there = _within(dims[places[0]], factors, runs, rule)
            if there is None:
                return None
            found.append(Zeros(places[0], there))
        sides.append(found)
    return PassedZeros(*sides)


def _core(dim: Dim, rule: Rule, runs: Runs) -> tuple[Dim, Runs] | None:
    """
    Returns the fewest factors of a dimension among which its zeros are, and the runs of
    these factors alone; None for a dimension without factors.
    """
    left = [f for f in dim if rule.factors[f].size > 1]
    if prod(rule.factors[f].size for f in left) != elements_in(runs):
        return None
    while len(left) > 1:
        size = rule.factors[left[-1]].size
        if any(n % size for run in runs for n in run):
            break
        runs = tuple((count // size, zeros // size) for count, zeros in runs)
        left.pop()
    while len(left) > 1:
        size = rule.factors[left[0]].size
        once, rest = runs[: len(runs) // size], len(runs) % size
        if rest or runs != once * size:
            break
        runs = once
        left.pop(0)
    return (tuple(left), runs) if left else None


def _within(dim: Dim, factors: Dim, runs: Runs, rule: Rule) -> Runs | None:
    """
    Returns the runs of a dimension that has these factors among others, given those of the
    factors; None if it does not have all of them, one after the other.
    """
    own = [f for f in dim if rule.factors[f].size > 1 or f in factors]
    begin = own.index(factors[0]) if factors[0] in own else len(own)
    end = begin + len(factors)
    if tuple(own[begin:end]) != factors:
        return None
    before = prod(rule.factors[f].size for f in own[:begin])
    behind = prod(rule.factors[f].size for f in own[end:])
    return joined(scaled(runs, behind) * before)
