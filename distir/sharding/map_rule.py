"""
Sharding rules from indexing maps, for ops that are loops over tensors. Each operand and
result has a map, which gives the element that an iteration reads or writes.

A loop that indexes a result is a parallel factor; any other loop is a reduction. A loop
in an expression such as `d0 + d1` (the windows of a convolution) cannot be split.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation
from xdsl.ir.affine import AffineDimExpr, AffineMap

from distir.dialects.dist import REDUCTIONS
from distir.dialects.registries import name_of
from distir.errors import DistIRError, one_of
from distir.sharding.rule import Dim, Factor, Kind, Linear, Rule, RuleFunction


def loop_sizes(
    types: Sequence[Attribute], maps: Sequence[AffineMap]
) -> tuple[int, ...]:
    """
    Returns the number of iterations of each loop, read from a dimension whose index is
    this loop alone. The number is 1 for a loop without such a dimension.
    """
    found = [1] * (maps[0].num_dims if maps else 0)
    for type_, indices in zip(types, maps, strict=True):
        if isinstance(type_, TensorType):
            for size, index in zip(type_.get_shape(), indices.results, strict=True):
                if isinstance(index, AffineDimExpr):
                    found[index.position] = size
    return tuple(found)


def loops_in_expressions(maps: Sequence[AffineMap]) -> frozenset[int]:
    """
    Returns the loops whose index occurs in an expression together with other terms,
    such as `d0 + d1`.
    """
    return frozenset(
        used
        for indices in maps
        for index in indices.results
        if not isinstance(index, AffineDimExpr)
        for used in index.used_dims()
    )


def dims_of_maps(
    maps: Sequence[AffineMap], sizes: Sequence[int]
) -> tuple[tuple[Dim, ...], ...]:
    """
    Returns the factors of each dimension of the tensors that `maps` index. The factors
    are the loops, with `sizes` iterations; a loop of one iteration is left out.
    """
    return tuple(
        tuple(
            (i.position,)
            if isinstance(i, AffineDimExpr) and sizes[i.position] > 1
            else ()
            for i in indices.results
        )
        for indices in maps
    )


def rule_from_maps(
    maps: Callable[[Any], Sequence[AffineMap]],
    *,
    reductions: Mapping[int, str] | str = "sum",
    keep: Collection[int] = (),
    linear: Sequence[Collection[int]] = (),
    flops: int = 0,
) -> RuleFunction:
    """
    Returns the sharding rule of ops that are loops over tensors, as a function from an
    op to its rule.

    - `maps`: a function from an op to its indexing maps, one for each operand and then
      one for each result, with a dimension for each loop;
    - `reductions`: for loops that index no result, the combination of their iterations,
      by loop or for all: `"sum"`, `"max"` or `"min"`;
    - `keep`: loops that must not be split;
    - `linear`: sets of operands, counted from 0, in which the results are linear, so
      that partial sums of exactly these operands pass through the op;
    - `flops`: floating-point operations of one iteration.

    If a loop indexes only some results, a split of the loop leaves partial sums in the
    results that it does not index. Loops in expressions stay whole, and so does an op
    with unknown sizes. The rule raises DistIRError for an op whose maps do not fit its
    operands and results.
    """
    every = reductions if isinstance(reductions, str) else "sum"
    kinds = {} if isinstance(reductions, str) else dict(reductions)
    for name in (every, *kinds.values()):
        one_of("reduction", name, REDUCTIONS, "rule_from_maps")

    def rule(op: Operation) -> Rule:
        found = tuple(maps(op))
        types = [v.type for v in (*op.operands, *op.results)]
        ranks = [t.get_num_dims() if isinstance(t, TensorType) else 0 for t in types]
        if [len(m.results) for m in found] != ranks or len(
            {m.num_dims for m in found}
        ) > 1:
            raise DistIRError(
                f"the sharding rule of {name_of(op)} has {len(found)} indexing maps, which "
                f"do not fit its {len(op.operands)} operands and {len(op.results)} results; "
                f"give one map for each, over the same loops, with one result per dimension"
            )
        sizes = loop_sizes(types, found)
        if any(size < 0 for size in sizes):
            return Rule.replicated(op)
        dims, count = dims_of_maps(found, sizes), len(op.operands)
        made = [{f for dim in tensor for f in dim} for tensor in dims[count:]]
        whole = loops_in_expressions(found) | set(keep)

        def kind(loop: int) -> Kind:
            if loop in whole:
                return "replicate"
            return "parallel" if any(loop in own for own in made) else "reduction"

        return Rule(
            factors=tuple(
                Factor(size, kind(i), kinds.get(i, every))
                if kind(i) == "reduction"
                else Factor(size, kind(i))
                for i, size in enumerate(sizes)
            ),
            operands=dims[:count],
            results=dims[count:],
            linear=tuple(Linear(frozenset(group)) for group in linear),
            partial_results={
                loop: frozenset(r for r, own in enumerate(made) if loop not in own)
                for loop in range(len(sizes))
                if kind(loop) == "parallel" and any(loop not in own for own in made)
            },
            flops=flops * prod(sizes),
        )

    return rule
