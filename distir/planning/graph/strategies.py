"""
The strategies of an op on a mesh: all legal ways in which the mesh's axes can split the
op.

Each mesh axis either splits one factor of the op's rule, or lets partial operands pass
through where the op is linear in them, or does nothing. A strategy combines one of
these options per axis. If an axis splits a factor that the op cannot split by itself,
the op is decomposed: for example into a product of split operands, the reduction of its
partial result, and the addition of a bias, or into the steps of a cross-entropy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from xdsl.ir import Operation

from distir.dialects.dist import Layout, Shard
from distir.dialects.tensors import shape_of
from distir.sharding.decompose import PartLayouts, decompose, layouts_of_parts
from distir.sharding.layout import canonical, layout_problem
from distir.sharding.mesh import Mesh
from distir.sharding.placement import Placement
from distir.sharding.rule import (
    Rule,
    inference_of,
    layout_for,
    operands_over,
    results_over,
    rule_for,
)


class SplitFactor(NamedTuple):
    """
    The option that an axis splits the factor with index `factor` of an op's rule. `run`
    is the number of elements that stay together. If `run` is None, the axis splits the
    factor into contiguous parts.
    """

    factor: int
    run: int | None = None


class PassPartial(NamedTuple):
    """
    The option that some operands of an op are partial over an axis and that the op's
    results are partial too. `linear` is the index of the entry of `Rule.linear` that
    lists these operands. `reduction`, such as `sum`, turns the partial values into the
    result.
    """

    linear: int
    reduction: str


Option: TypeAlias = SplitFactor | PassPartial | None
"""The effect of one mesh axis on an op; None if the axis does nothing."""


Sharding = TypeVar("Sharding", Layout, Placement)
"""
The way in which a value is sharded: its layout on a mesh, or its placement on one axis.
"""


class OpLayouts(NamedTuple):
    """
    The layouts of an op's operands and results. `parts` holds the layouts for the ops
    of its decomposition, and is empty if the op is not decomposed.
    """

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    parts: tuple[tuple[tuple[Layout, ...], tuple[Layout, ...]], ...] = ()

    @staticmethod
    def of(strategy: LayoutStrategy) -> OpLayouts:
        """Returns the layouts of a strategy, without its options for the mesh axes."""
        parts = tuple((part.operands, part.results) for part in strategy.parts)
        return OpLayouts(strategy.operands, strategy.results, parts)


class Strategy(NamedTuple, Generic[Sharding]):
    """
    The shardings of an op's operands and results. `options` holds the choice for each
    axis, in the order of the mesh. `parts` holds the strategies for the ops of the
    decomposition, and is empty if the op is not decomposed.
    """

    options: tuple[Option, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    parts: tuple[Strategy[Sharding], ...] = ()

    @staticmethod
    def whole(op: Operation, mesh: Mesh) -> LayoutStrategy:
        """Returns the strategy of `op` that splits nothing."""
        layout = Layout(mesh.name)
        return Strategy((), (layout,) * len(op.operands), (layout,) * len(op.results))

    @staticmethod
    def of_parts(
        layouts: Iterable[PartLayouts], axes: Sequence[str]
    ) -> tuple[LayoutStrategy, ...]:
        """
        Returns a strategy for each op of a decomposition, from the layouts of these
        ops. `axes` are the mesh axes for which the strategies list options.
        """
        return tuple(
            Strategy(_options(own.assignment, axes), own.operands, own.results)
            for own in layouts
        )

    def assignment(self, mesh: Mesh) -> dict[int, tuple[Shard, ...]]:
        """
        Returns the shards that split each split factor of the op's rule. Only the first
        axes of the mesh are considered, as many as the strategy has options.
        """
        found: dict[int, tuple[Shard, ...]] = {}
        axes = mesh.axes[: len(self.options)]
        for (axis, _), option in zip(axes, self.options, strict=True):
            if isinstance(option, SplitFactor):
                before = found.get(option.factor, ())
                found[option.factor] = (*before, Shard(axis, option.run))
        return found


LayoutStrategy: TypeAlias = Strategy[Layout]
"""A strategy for an op on all axes of a mesh."""

AxisStrategy: TypeAlias = Strategy[Placement]
"""A strategy for an op on one mesh axis."""


def _options(
    assignment: Mapping[int, tuple[Shard, ...]], axes: Sequence[str]
) -> tuple[Option, ...]:
    """
    Returns the option of each of `axes`, given the shards that split each factor of a
    rule.
    """
    found = {
        shard.axis: SplitFactor(factor, shard.run)
        for factor, shards in assignment.items()
        for shard in shards
    }
    return tuple(found.get(axis) for axis in axes)


def options(
    op: Operation, rule: Rule, mesh: Mesh, axis: str, runs: Iterable[SplitFactor]
) -> list[Option]:
    """
    Returns the options that the axis `axis` has for an op. `runs` lists the
    block-cyclic splits that are worth trying.
    """
    size = mesh.size(axis)
    found: list[Option] = [None]
    if any(own.axis == axis for own in rule.axes_on(mesh)):
        return found  # the op says itself what this axis splits
    tried = [*map(SplitFactor, range(len(rule.factors))), *sorted(runs)]
    for factor, run in tried:
        whole = rule.factors[factor].size
        if rule.factors[factor].kind == "replicate" or whole % (size * (run or 1)):
            continue
        if run is None or run * size != whole:
            found.append(SplitFactor(factor, run))
    for index, linear in enumerate(rule.linear):
        found += [PassPartial(index, m) for m in sorted(linear.reductions)]
    return found


def strategies(
    op: Operation, rule: Rule, mesh: Mesh, per_axis: Sequence[Sequence[Option]]
) -> list[LayoutStrategy]:
    """
    Returns the legal combinations of options for an op. `per_axis` lists the options of
    each of the mesh's first axes. Combinations that lead to the same layouts are listed
    once. The strategy that splits nothing comes first.
    """
    axes = [axis for axis, _ in mesh.axes[: len(per_axis)]]
    found: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], LayoutStrategy] = {}
    for combination in product(*per_axis):
        chosen = dict(zip(axes, combination, strict=True))
        for strategy in _combined(op, rule, mesh, chosen):
            found.setdefault((strategy.operands, strategy.results), strategy)
    return list(found.values())


def _combined(
    op: Operation, rule: Rule, mesh: Mesh, chosen: Mapping[str, Option]
) -> Iterator[LayoutStrategy]:
    assignment: dict[int, tuple[Shard, ...]] = {}
    partial: list[list[tuple[str, str]]] = [[] for _ in rule.operands]
    for axis, option in chosen.items():
        if isinstance(option, SplitFactor):
            before = assignment.get(option.factor, ())
            assignment[option.factor] = (*before, Shard(axis, option.run))
        elif option is not None:
            for index in rule.linear[option.linear].operands:
                partial[index].append((axis, option.reduction))
    if not _divides(rule, assignment, mesh):
        return
    given = tuple(chosen.values())
    operands = _layouts(op, rule, assignment, mesh, partial)
    if operands is None:
        return
    if not rule.decomposed.isdisjoint(assignment):
        yield from _decomposed(op, mesh, given, operands)
        return
    own_axes = [own for own in rule.axes_on(mesh) if own.axis in chosen]
    found = inference_of(rule.with_axes(()), operands, mesh)
    if isinstance(found, str):
        return
    results = results_over(rule, own_axes, found.results, mesh)
    operands = operands_over(rule, own_axes, operands, mesh)
    if any(
        layout_problem(shape_of(value.type), layout, mesh)
        for value, layout in zip(
            (*op.operands, *op.results), (*operands, *results), strict=True
        )
    ):
        return
    yield Strategy(given, operands, results)


def _divides(
    rule: Rule, assignment: Mapping[int, tuple[Shard, ...]], mesh: Mesh
) -> bool:
    return all(
        rule.factors[f].size % prod(mesh.size(s.axis) for s in shards) == 0
        for f, shards in assignment.items()
    )


def _layouts(
    op: Operation,
    rule: Rule,
    assignment: Mapping[int, tuple[Shard, ...]],
    mesh: Mesh,
    partial: Sequence[Sequence[tuple[str, str]]],
) -> tuple[Layout, ...] | None:
    found: list[Layout] = []
    for value, dims, sums in zip(op.operands, rule.operands, partial, strict=True):
        layout = layout_for(dims, rule, assignment, mesh, sums)
        layout = canonical(shape_of(value.type), layout, mesh)
        if layout_problem(shape_of(value.type), layout, mesh):
            return None
        found.append(layout)
    return tuple(found)


def _decomposed(
    op: Operation, mesh: Mesh, given: tuple[Option, ...], operands: tuple[Layout, ...]
) -> Iterator[LayoutStrategy]:
    """
    Yields the strategies that decompose the op. Partial results of a part are reduced
    before other parts use them. If the last part adds a value to the partial result of
    the first, a further strategy reduces and scatters the partial result instead.
    """
    ops = decompose(op)
    if ops is None:
        return
    first, middle, last = ops[0], ops[1:-1], ops[-1]
    layouts = layouts_of_parts(op, ops, operands, mesh)
    if layouts is None:
        return
    parts = Strategy.of_parts(layouts, ())
    yield Strategy(given, tuple(operands), parts[-1].results, parts)
    (partial, *_), start = parts[0].results, parts[0]
    if last.name != "onnx.Add" or last.operands[0] is not first.results[0]:
        return
    count = len(first.operands)
    whole = Layout(mesh.name)
    for reduced in _scattered(partial, shape_of(first.results[0].type), mesh):
        addend = _addend(last, reduced, mesh)
        # Ops in the middle prepare the addend; they work on the whole of it.
        if addend is None or (middle and addend != whole):
            continue
        between = [Strategy.whole(o, mesh) for o in middle]
        parts = (start, *between, Strategy((), (reduced, addend), (reduced,)))
        yield Strategy(given, (*operands[:count], addend), (reduced,), parts)


def _scattered(partial: Layout, shape: Sequence[int], mesh: Mesh) -> Iterator[Layout]:
    """
    Yields the layouts to which one reduce-scatter can bring a partial value of shape
    `shape`.
    """
    reduced = partial.without_partial(partial.partial_axes)
    if len(partial.partial_axes) != 1:
        return
    (axis,) = partial.partial_axes
    for dim in range(len(shape)):
        shards = (*reduced.dim(dim), Shard(axis))
        split = reduced.with_dim(dim, shards, len(shape))
        if not layout_problem(shape, split, mesh):
            yield split


def _addend(add: Operation, reduced: Layout, mesh: Mesh) -> Layout | None:
    """
    Returns the layout that the second operand of an addition needs if its first operand
    and its result have the layout `reduced`. Returns None if no layout of the second
    operand is possible.
    """
    rule = rule_for(add)
    assignment: dict[int, tuple[Shard, ...]] = {
        dim[0]: reduced.dim(d) for d, dim in enumerate(rule.operands[0]) if dim
    }
    addend = layout_for(rule.operands[1], rule, assignment, mesh)
    found = inference_of(rule, (reduced, addend), mesh)
    return None if isinstance(found, str) or found.results != (reduced,) else addend
