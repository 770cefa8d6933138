"""The splits of an op that its sharding rule allows on a small mesh."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from distir.dialects.dist import Shard
from distir.sharding.layout import joint_run
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Assignment, Rule

_Item = TypeVar("_Item")


@cache
def mesh(**axes: int) -> Mesh:
    """Returns the mesh `@m` with axes of the given names and sizes."""
    return Mesh("m", tuple(axes.items()), tuple(range(prod(axes.values()))))


def shards_of(size: int, axis: str, parts: int) -> Iterator[Shard]:
    """
    Yields every split of `size` elements into `parts` over one axis: contiguous parts,
    and block-cyclic parts in shorter runs.
    """
    if size % parts == 0:
        yield Shard(axis)
        for run in range(1, size // parts):
            if size % (run * parts) == 0:
                yield Shard(axis, run)


def can_split(rule: Rule, factor: int) -> bool:
    """
    Whether an op with this rule can split the factor without a decomposition. A factor
    that only results have can be split only in ops without operands, such as constants.
    """
    read = (f for dims in rule.operands for dim in dims for f in dim)
    return (
        rule.factors[factor].kind != "replicate"
        and factor not in rule.decomposed
        and (rule.is_made_anywhere or factor in read)
    )


def assignments(rule: Rule, on: Mesh) -> Iterator[Assignment]:
    """
    Yields every legal split of at most two factors over the axes of `on`, which has one
    axis or two. The first assignment splits nothing.
    """
    factors = [f for f in range(len(rule.factors)) if can_split(rule, f)]
    yield {}
    for f in factors:
        size = rule.factors[f].size
        for axis, parts in on.axes:
            for shard in shards_of(size, axis, parts):
                yield {f: (shard,)}
        if len(on.axes) == 1:
            continue
        (a, m), (b, n) = on.axes
        for first in shards_of(size, a, m):
            for second in shards_of(size // m, b, n):
                yield {f: (first, second)}
        if size % (m * n) == 0:
            yield {f: (Shard(b), Shard(a))}
        for g in factors:
            if g != f:
                for first in shards_of(size, a, m):
                    for second in shards_of(rule.factors[g].size, b, n):
                        yield {f: (first,), g: (second,)}


def partial_assignments(
    rule: Rule, operands: Sequence[npt.NDArray[Any]], on: Mesh
) -> Iterator[tuple[Assignment, frozenset[int], str]]:
    """
    Yields cases in which operands hold partial values over the last of two axes of
    `on`. A case consists of a split of at most one factor over the first axis, the
    operands with partial values, and the reduction of these values. Boolean operands
    are left out, because booleans cannot be added.
    """
    for linear in rule.linear:
        if any(operands[i].dtype == np.bool_ for i in linear.operands):
            continue
        for reduction in sorted(linear.reductions):
            yield {}, linear.operands, reduction
            for a, m in on.axes[:-1]:
                for f, factor in enumerate(rule.factors):
                    # A sum over one axis and a maximum over another do not commute.
                    if factor.kind == "reduction" and factor.reduction != reduction:
                        continue
                    if can_split(rule, f) and factor.size % m == 0:
                        yield {f: (Shard(a),)}, linear.operands, reduction


def nests(rule: Rule, assignment: Assignment, on: Mesh) -> bool:
    """
    Whether the axes of each factor in `assignment`, on the mesh `on`, form one regular
    split, so that one collective over all of these axes can gather the factor.
    """
    try:
        for factor, shards in assignment.items():
            joint_run(rule.factors[factor].size, shards, on)
    except ValueError:
        return False
    return True


def sample(items: Sequence[_Item], count: int, seed: str) -> list[_Item]:
    """
    Returns at most `count` of the items. The first item is always among them. The
    choice depends on `seed` only.
    """
    if len(items) <= count:
        return list(items)
    return [items[0], *random.Random(seed).sample(list(items[1:]), count - 1)]
