"""
Sharding rules: the relations between the dimensions of an op's operands and results.

A rule names *factors*, and maps every dimension of every operand and result to an
ordered list of factors, major to minor: `matmul ([b,i,k],[k,j]) -> [b,i,j]`. A reshape
`[6] -> [2,3]` is `([i j]) -> [i, j]`. A mesh axis may split at most one factor of an
op. Legal layouts, the layouts of results, pending reductions and the work on each
device follow from the rule.

Rules are registered by op name, from any module:

```python
@sharding_rule("toy.outer")  # out[i, j] = x[i] * y[j]
def outer(op: Operation) -> Rule:
    (i,), (j,) = (shape_of(value.type) for value in op.operands)
    return Rule(
        factors=(Factor(i), Factor(j)),
        operands=(((0,),), ((1,),)),
        results=(((0,), (1,)),),
        flops=i * j,
    )
```
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from typing import Literal

from xdsl.ir import Operation

from distir.dialects.constants import is_direct_constant
from distir.dialects.dist import Layout, Shard
from distir.dialects.registries import Registry
from distir.dialects.tensors import rank_of
from distir.errors import ShardingError
from distir.sharding.mesh import Mesh

Kind = Literal["parallel", "reduction", "replicate"]

Dim = tuple[int, ...]
"""
The factors of one dimension, major to minor. A dimension without factors cannot be
split.
"""


@dataclass(frozen=True)
class Factor:
    """
    A group of dimensions, or of parts of dimensions, that a mesh axis splits together,
    with its size and kind.

    - `parallel`: the factor appears in results; splitting the factor splits these
      results;
    - `reduction`: the factor is removed by a sum, maximum or minimum; splitting the
      factor leaves results partial;
    - `replicate`: the factor must not be split.
    """

    size: int
    kind: Kind = "parallel"
    reduction: str = "sum"


@dataclass(frozen=True)
class Linear:
    """
    A set of operands through which partial values pass. If exactly these operands are
    partial over an axis, all with the same reduction from `reductions`, the results are
    partial over that axis too.
    """

    operands: frozenset[int]
    reductions: frozenset[str] = frozenset({"sum"})


BY_ITSELF = -1
"""
The key, beside those of factors, of the parts into which an op divides work by itself.
"""


@dataclass(frozen=True)
class AxisDims:
    """
    A mesh axis over which an op communicates on its own, such as an opaque module with
    a collective inside. The axis splits no factor. It splits the given dimension of
    each operand and result; an entry is None if the axis splits no dimension of that
    tensor. A result in `sums` is a sum over the axis.
    """

    axis: str
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    sums: frozenset[int] = frozenset()


Assignment = Mapping[int, tuple[Shard, ...]]
"""The axes that split each factor. Run lengths are relative to the factor."""


@dataclass(frozen=True)
class Rule:
    """
    The sharding rule of one op.

    - `operands`, `results`: for each operand (in the order of `op.operands`) and
      result, the factors of each dimension. A dimension of size 1 that broadcasts has
      none.
    - `linear`: the sets of operands through which partial values may pass.
    - `decomposed`: factors that only the op's decomposition (`decompose`) can split:
      the reduction of a Gemm with a bias, the classes of a cross-entropy.
    - `partial_results`: for a parallel factor, the results that lack the factor because
      they are reduced over it. A kernel may return the gradient of its input, per row,
      and the gradient of a weight, summed over rows. Splitting the factor leaves these
      results partial.
    - `flops`: floating-point operations of the whole op; 0 for ops bound by memory.
      `recomputed`: the part of these operations in which a gradient repeats work of the
      forward pass.
    - `unread`: operands whose values are not read. Only their layouts matter: they
      determine the split of results. An axis of such an operand splits results only if
      no other operand uses this axis.
    - `own_axes`: the axes over which the op communicates on its own. They split
      operands and results in the declared way, independently of the factors.
    - `fills`: whether each device can make any part of the results from whole operands,
      such as the shape of a tensor whose elements are all equal.
    """

    factors: tuple[Factor, ...] = ()
    operands: tuple[tuple[Dim, ...], ...] = ()
    results: tuple[tuple[Dim, ...], ...] = ()
    linear: tuple[Linear, ...] = ()
    decomposed: frozenset[int] = field(default_factory=frozenset)
    partial_results: Mapping[int, frozenset[int]] = field(
        default_factory=dict[int, frozenset[int]]
    )
    flops: int = 0
    recomputed: int = 0
    unread: frozenset[int] = frozenset()
    own_axes: tuple[AxisDims, ...] = ()
    fills: bool = False

    @property
    def key(self) -> Hashable:
        """A key that is equal for equal rules."""
        partial = frozenset(self.partial_results.items())
        every = (getattr(self, own.name) for own in fields(self))
        return partial, *(own for own in every if own is not self.partial_results)

    @staticmethod
    def replicated(op: Operation) -> Rule:
        """
        Returns the rule that splits nothing. It is correct for every op, but allows no
        parallel work.
        """
        return Rule(
            operands=tuple(((),) * rank_of(v.type) for v in op.operands),
            results=tuple(((),) * rank_of(v.type) for v in op.results),
        )

    @cached_property
    def result_factors(self) -> frozenset[int]:
        """The factors that appear in at least one result."""
        return frozenset(f for dims in self.results for dim in dims for f in dim)

    @property
    def is_made_anywhere(self) -> bool:
        """
        Whether the op can make its results in any layout, because each device can make
        any part. This is so if the op has no tensor operands, or if it `fills` the
        results with equal elements.
        """
        return bool(self.result_factors) and (self.fills or not any(self.operands))

    def with_axes(self, own_axes: tuple[AxisDims, ...]) -> Rule:
        """
        Returns the rule of an op that communicates on its own over the axes `own_axes`.
        """
        return replace(self, own_axes=own_axes)

    def axes_on(self, mesh: Mesh) -> tuple[AxisDims, ...]:
        """The axes of `mesh` over which the op communicates on its own."""
        if not self.own_axes:
            return ()
        return tuple(own for own in self.own_axes if mesh.sizes.get(own.axis, 1) > 1)

    def parts_on(self, mesh: Mesh) -> int:
        """
        The number of devices of `mesh` among which the op divides work by its own
        communication.
        """
        return prod(mesh.size(own.axis) for own in self.axes_on(mesh))


RuleFunction = Callable[[Operation], Rule]

sharding_rule = Registry[RuleFunction]("distir.sharding.rules")
"""
Registers the sharding rule of the ops with the given names: a function from an op to
its `Rule`.
"""


def rule_for(op: Operation) -> Rule:
    """
    Returns the sharding rule of `op`. An op without a registered rule is replicated.
    """
    function = sharding_rule.of(op)
    return Rule.replicated(op) if function is None else function(op)


def is_made_by_users(op: Operation) -> bool:
    """
    Whether `op` is a constant with equal elements. Each user makes its own copy of such
    a constant, in its layout and at no cost.
    """
    return any(map(is_direct_constant, op.results)) and rule_for(op).is_made_anywhere


def dim_shards(
    dim: Dim, rule: Rule, assignment: Assignment, mesh: Mesh
) -> tuple[Shard, ...]:
    """
    Returns the axes that split the dimension `dim` if `assignment` splits its factors.
    The axes are in the mesh's order, as far as the order within each factor allows.
    """
    # Most dimensions are whole, and this runs very often.
    if not any([assignment.get(f) for f in dim]):
        return ()
    pending = [list(assignment.get(f, ())) for f in dim]
    left = [rule.factors[f].size for f in dim]
    out: list[Shard] = []
    while any(pending):
        # Splits of different factors commute. One order for all ops gives one spelling.
        j = min(
            (j for j, shards in enumerate(pending) if shards),
            key=lambda j: mesh.position_of_axis(pending[j][0].axis),
        )
        shard = pending[j].pop(0)
        n = mesh.size(shard.axis)
        own_run = shard.run if shard.run is not None else left[j] // n
        run = own_run * prod(left[j + 1 :])
        contiguous = run * n == prod(left)
        out.append(Shard(shard.axis, None if contiguous else run))
        left[j] //= n
    return tuple(out)


def factor_shards(
    shards: Sequence[Shard], dim: Dim, rule: Rule, mesh: Mesh
) -> dict[int, tuple[Shard, ...]] | None:
    """
    Returns the shards of each factor of the dimension `dim` if `shards` split the
    dimension; this is the inverse of `dim_shards`. Returns None if no split of its
    factors gives `shards`.
    """
    left = [rule.factors[f].size for f in dim]
    out: dict[int, list[Shard]] = {}
    for shard in shards:
        n = mesh.size(shard.axis)
        total = prod(left)
        if total % n:
            return None
        run = shard.run if shard.run is not None else total // n
        for j in range(len(dim) - 1, -1, -1):
            minor = prod(left[j + 1 :])
            if left[j] == 1 or run % minor:
                continue
            own_run = run // minor
            if left[j] % (own_run * n) == 0:
                contiguous = own_run * n == left[j]
                out.setdefault(dim[j], []).append(
                    Shard(shard.axis, None if contiguous else own_run)
                )
                left[j] //= n
                break
        else:
            if n > 1:
                return None
    return {factor: tuple(s) for factor, s in out.items()}


def layout_for(
    dims: Sequence[Dim],
    rule: Rule,
    assignment: Assignment,
    mesh: Mesh,
    partial: Sequence[tuple[str, str]] = (),
) -> Layout:
    """
    Returns the layout of an operand or result with the dimensions `dims` under
    `assignment`. `partial` lists the axes over which the value is partial, with their
    reductions.
    """
    return Layout(
        mesh.name,
        tuple(dim_shards(dim, rule, assignment, mesh) for dim in dims),
        tuple(partial),
    )


@dataclass(frozen=True)
class Inference:
    """
    The facts that follow from the layouts of an op's operands: the split of each
    factor, and the layouts of the results.
    """

    assignment: Assignment
    results: tuple[Layout, ...]


def infer(rule: Rule, operands: Sequence[Layout], mesh: Mesh) -> Inference:
    """
    Returns the split of factors and the layouts of results for operands with the
    layouts `operands`. Raises ShardingError if the rule does not allow these layouts.
    """
    found = inference_of(rule, operands, mesh)
    if isinstance(found, str):
        raise ShardingError(found)
    return found


def inference_of(rule: Rule, operands: Sequence[Layout], mesh: Mesh) -> Inference | str:
    """
    Returns the split of factors and the layouts of results that follow, without
    communication, from the operand layouts `operands`. If the rule does not allow these
    layouts, returns the reason as text, which names the operand and the expected
    layout.
    """
    own_axes = rule.axes_on(mesh)
    if own_axes:
        return _inference_beside(rule, own_axes, operands, mesh)
    operands = layouts_read(rule, operands)
    assignment: dict[int, tuple[Shard, ...]] = {}
    for index, (layout, dims) in enumerate(zip(operands, rule.operands, strict=True)):
        if layout.mesh != mesh.name:
            return (
                f"operand {index} lives on mesh @{layout.mesh}, expected @{mesh.name}"
            )
        for d, dim in enumerate(dims):
            own = layout.dim(d)
            split = factor_shards(own, dim, rule, mesh) if own else {}
            if split is None:
                return (
                    f"operand {index}: the op cannot split dimension {d} as "
                    f"{layout} does"
                    + _expectation(index, rule, assignment, mesh, layout)
                )
            for factor in dim:
                shards = split.get(factor, ())
                if index in rule.unread and factor in assignment:
                    continue  # as the operands that are read say
                if assignment.setdefault(factor, shards) != shards:
                    return (
                        f"operand {index} has layout {layout}, which does not fit the "
                        f"operands before it"
                        + _expectation(index, rule, assignment, mesh, layout)
                    )
    partial: dict[str, str] = {}
    for axis in sorted({a for layout in operands for a, _ in layout.partial}):
        reduction = _passed_reduction(rule, operands, axis)
        if reduction is None:
            index = next(i for i, o in enumerate(operands) if axis in o.partial_axes)
            return (
                f"operand {index} has layout {operands[index]}, but the op cannot work on "
                f"values that are partial over {axis!r} there; expected layout "
                f"{operands[index].without_partial([axis])}"
            )
        partial[axis] = reduction
    seen: dict[str, int] = {}
    for f, shards in assignment.items():
        for shard in shards:
            kind = rule.factors[f].kind
            if kind == "replicate" or f in rule.decomposed:
                why = (
                    "cannot do that by itself; decompose it first"
                    if f in rule.decomposed
                    else "needs that dimension whole"
                )
                index, d = _where(rule, f)
                return (
                    f"operand {index}: dimension {d} is split over {shard.axis!r}, but "
                    f"the op {why}; expected layout "
                    f"{layout_for(rule.operands[index], rule, {**assignment, f: ()}, mesh)}"
                )
            if shard.axis in seen or shard.axis in partial:
                index, d = _where(rule, f)
                expected = layout_for(
                    rule.operands[index], rule, {**assignment, f: ()}, mesh
                )
                why = (
                    "already splits another dimension of the op"
                    if shard.axis in seen
                    else "is one that another operand is partial over"
                )
                return (
                    f"operand {index}: axis {shard.axis!r} of dimension {d} {why}; "
                    f"expected layout {expected}"
                )
            seen[shard.axis] = f
            if kind == "reduction":
                partial[shard.axis] = rule.factors[f].reduction
    if len(set(partial.values())) > 1:
        return (
            f"the results would be partial with several reductions at once, over "
            f"{', '.join(f'{a!r} ({m})' for a, m in sorted(partial.items()))}, and their "
            f"order matters; expected operands that are reduced first"
        )
    results = tuple(
        layout_for(
            dims,
            rule,
            assignment,
            mesh,
            (*partial.items(), *_reduced(rule, assignment, index)),
        )
        for index, dims in enumerate(rule.results)
    )
    return Inference(assignment, results)


def _inference_beside(
    rule: Rule, own_axes: Sequence[AxisDims], operands: Sequence[Layout], mesh: Mesh
) -> Inference | str:
    """
    Returns the inference of an op that communicates on its own over `own_axes`. The
    operands must be split over these axes as declared. The remaining axes of the mesh
    split the factors of the rule.
    """
    names = [own.axis for own in own_axes]
    rest = [_without_axes(layout, names) for layout in operands]
    wanted = operands_over(rule, own_axes, rest, mesh)
    for index, (layout, expected) in enumerate(zip(operands, wanted, strict=True)):
        if _places(layout) != _places(expected):
            return (
                f"operand {index} has layout {layout}, but the op communicates over "
                f"{', '.join(map(repr, names))} by itself; expected layout {expected}"
            )
    found = inference_of(replace(rule, own_axes=()), rest, mesh)
    if isinstance(found, str):
        return found
    results = results_over(rule, own_axes, found.results, mesh)
    return Inference(found.assignment, results)


def _places(layout: Layout) -> set[tuple[int, Shard | str]]:
    """
    Returns the shards of a layout, each with the index of its dimension, and the
    partial axes, each with the index -1.
    """
    found: set[tuple[int, Shard | str]] = {
        (d, shard) for d, dim in enumerate(layout.dims) for shard in dim
    }
    found.update((-1, axis) for axis in layout.partial_axes)
    return found


def _without_axes(layout: Layout, axes: Sequence[str]) -> Layout:
    """Returns a layout without the mesh axes `axes`."""
    dims = (tuple(s for s in dim if s.axis not in axes) for dim in layout.dims)
    partial = tuple(p for p in layout.partial if p[0] not in axes)
    return replace(layout, dims=tuple(dims), partial=partial)


def operands_over(
    rule: Rule, own_axes: Sequence[AxisDims], layouts: Sequence[Layout], mesh: Mesh
) -> tuple[Layout, ...]:
    """
    Adds the axes over which an op communicates on its own (`own_axes`) to the `layouts`
    of its operands, and returns the new layouts. Each axis splits the declared
    dimension of an operand.
    """
    found = list(layouts)
    for own in own_axes:
        for i, dim in enumerate(own.operands):
            if dim is not None:
                rank = len(rule.operands[i])
                found[i] = _with_axis(found[i], own.axis, dim, rank, mesh)
    return tuple(found)


def results_over(
    rule: Rule, own_axes: Sequence[AxisDims], layouts: Sequence[Layout], mesh: Mesh
) -> tuple[Layout, ...]:
    """
    Adds the axes over which an op communicates on its own (`own_axes`) to the `layouts`
    of its results, and returns the new layouts. Each axis splits the declared dimension
    of a result. A result that is a sum over the axis becomes partial over it.
    """
    found = list(layouts)
    for own in own_axes:
        for i, dim in enumerate(own.results):
            if dim is not None:
                rank = len(rule.results[i])
                found[i] = _with_axis(found[i], own.axis, dim, rank, mesh)
            elif i in own.sums:
                partial = (*found[i].partial, (own.axis, "sum"))
                found[i] = replace(found[i], partial=partial)
    return tuple(found)


def _with_axis(layout: Layout, axis: str, dim: int, rank: int, mesh: Mesh) -> Layout:
    """
    Returns a layout in which `axis` also splits dimension `dim`, contiguously. Axes of
    one dimension are in the order of the mesh.
    """
    shards = (*layout.dim(dim), Shard(axis))
    if all(shard.run is None for shard in shards):
        shards = tuple(sorted(shards, key=lambda s: mesh.position_of_axis(s.axis)))
    return layout.with_dim(dim, shards, rank)


def layouts_read(rule: Rule, operands: Sequence[Layout]) -> list[Layout]:
    """
    Returns the layouts of the operands, restricted to the axes that affect the op. An
    operand whose values are not read keeps only the split axes that no other operand
    uses, and is not partial.
    """
    found = list(operands)
    for i in rule.unread:
        used = {
            axis
            for j, layout in enumerate(operands)
            if j not in rule.unread
            for axis in (*layout.split_axes, *layout.partial_axes)
        }
        dims = (tuple(s for s in d if s.axis not in used) for d in operands[i].dims)
        found[i] = replace(operands[i], dims=tuple(dims), partial=())
    return found


def _reduced(rule: Rule, assignment: Assignment, result: int) -> list[tuple[str, str]]:
    """
    Returns the mesh axes over which result `result` holds partial values under
    `assignment`, each with the reduction that completes it. These axes split a parallel
    factor over which the result is a sum.
    """
    return [
        (shard.axis, rule.factors[f].reduction)
        for f, reduced in rule.partial_results.items()
        if result in reduced
        for shard in assignment.get(f, ())
    ]


def _where(rule: Rule, factor: int) -> tuple[int, int]:
    for index, dims in enumerate(rule.operands):
        for d, dim in enumerate(dims):
            if factor in dim:
                return index, d
    return 0, 0


def _expectation(
    index: int, rule: Rule, assignment: Assignment, mesh: Mesh, layout: Layout
) -> str:
    known = {f: s for f, s in assignment.items()}
    expected = layout_for(rule.operands[index], rule, known, mesh, layout.partial)
    return f"; expected layout {expected}"


def _passed_reduction(rule: Rule, operands: Sequence[Layout], axis: str) -> str | None:
    """
    Returns the reduction with which the results are partial over `axis`. Returns None
    if the partial operands cannot pass through the op.
    """
    over = {
        i: dict(layout.partial)[axis]
        for i, layout in enumerate(operands)
        if axis in layout.partial_axes
    }
    reductions = set(over.values())
    for linear in rule.linear:
        if linear.operands == frozenset(over) and len(reductions) == 1:
            (reduction,) = reductions
            if reduction in linear.reductions:
                return reduction
    return None
