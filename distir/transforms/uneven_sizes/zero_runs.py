"""
Propagates the padding of a dimension through an op, by the op's sharding rule. A
dimension is padded in runs: pairs of a number of elements and the number of zeros that
follow these elements. For example, 14 heads of 64 features in two groups of 7 heads,
each group padded with one head of zeros, are `((448, 64), (448, 64))`. A reshape to
heads and features turns this into `((7, 1), (7, 1))`. An elementwise product does not
change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from distir.program.source_forms import Runs, elements_in, size_of
from distir.sharding.rule import Dim, Rule


class Zeros(NamedTuple):
    """
    The padding of a value with zeros. `dim` is the padded dimension. `runs` has pairs
    of a number of elements and the number of zeros that follow these elements.
    """

    dim: int
    runs: Runs

    def shape(self, before: Sequence[int]) -> tuple[int, ...]:
        """Returns the padded shape of a value that had the shape `before`."""
        sizes = list(before)
        sizes[self.dim] = size_of(self.runs)
        return tuple(sizes)


class PassedZeros(NamedTuple):
    """
    The padding of each operand and each result of an op. An entry is None if the
    operand or result has no padding.
    """

    operands: list[Zeros | None]
    results: list[Zeros | None]


def scaled(runs: Runs, by: int) -> Runs:
    """
    Returns the runs of a dimension in which each element is replaced by `by` elements.
    """
    return tuple((count * by, zeros * by) for count, zeros in runs)


def joined(runs: Runs) -> Runs:
    """Returns the same runs with each run without zeros joined to the next run."""
    found: list[tuple[int, int]] = []
    for count, zeros in runs:
        if found and not found[-1][1]:
            found[-1] = (found[-1][0] + count, zeros)
        else:
            found.append((count, zeros))
    return tuple(found)


def passed(rule: Rule, of_result: bool, index: int, zeros: Zeros) -> PassedZeros | None:
    """
    Returns the padding of all operands and results of an op with the sharding rule
    `rule`. `zeros` is the padding of the result at `index` with `of_result`, else of
    the operand at `index`. Returns None if the rule cannot propagate the padding to the
    remaining operands and results.
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
    Returns the smallest group of factors of a dimension that contains the dimension's
    padding, and the runs of this group. Returns None if the runs do not agree with the
    sizes of the factors.
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
    Returns the runs of the dimension `dim`, given the runs `runs` of its factors
    `factors`. Returns None unless `dim` has all of `factors`, one after another.
    """
    own = [f for f in dim if rule.factors[f].size > 1 or f in factors]
    begin = own.index(factors[0]) if factors[0] in own else len(own)
    end = begin + len(factors)
    if tuple(own[begin:end]) != factors:
        return None
    before = prod(rule.factors[f].size for f in own[:begin])
    behind = prod(rule.factors[f].size for f in own[end:])
    return joined(scaled(runs, behind) * before)
