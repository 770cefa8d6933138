"""What an op can do with one mesh axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf, prod
from typing import NamedTuple

from xdsl.ir import Operation

from distir.dialects.dist import Shard
from distir.planning.strategies import NOTHING, Option, Strategy
from distir.sharding.decompose import decompose, discard, layouts_of_parts
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import (
    WHOLE,
    Placement,
    add_placement,
    placement_in,
)
from distir.sharding.prices import (
    PRICE_PER_BYTE_TOUCHED,
    local_bytes,
    reduce_price,
)
from distir.sharding.rule import Rule, dim_shards, factor_shards, rank_of, shape_of


class Take(Enum):
    """How an op may come to an operand in the placement that it wants."""

    AS_IS = 0
    """The value must be there like that."""
    MOVED = 1
    """Communication may bring it there, but a whole value is not cut."""
    CUT = 2
    """A whole value may be cut, a partial one reduced and scattered."""
    GATHERED = 3
    """As `CUT`, and the value must not be there in parts in any way."""


class Cut(NamedTuple):
    """A part of a value, and which of its uses (in program order) makes it."""

    placement: Placement
    use: int


Ways = tuple[Placement, ...]
"""The placements in which a value is there; the first is the one it is made in."""


class AxisStrategy(NamedTuple):
    """
    What an axis does to one op, or in which ways a value is there for those that use it.

    - `option`: what is split of its rule, or which partial values pass, if anything;
    - `operands`, `results`: the placements in which it takes and gives values;
    - `work`: of the op on one device, in floating-point operations;
    - `decompose`: whether only the op's decomposition can do that;
    - `takes`: per operand, how it may come to be placed so;
    - `also`: of a value, in which other placements it is there too; `cut`: that one of its
      uses cuts a part out of it, or reduces and scatters it, and those behind have that
      part too.
    """

    option: Option
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    work: float = 0.0
    decompose: bool = False
    takes: tuple[Take, ...] = ()
    also: Ways = ()
    cut: Cut | None = None

    @staticmethod
    def of_value(ways: Ways, cut: Cut | None = None) -> AxisStrategy:
        """A value is there in these ways."""
        return AxisStrategy(NOTHING, (), ways[:1], also=ways[1:], cut=cut)

    def ways(self, result: int) -> Ways:
        """In which a result is there."""
        return (self.results[result], *self.also)


class OpCandidates:
    """What one mesh axis can do to an op and all that are like it."""

    def __init__(
        self, op: Operation, rule: Rule, base: Strategy, mesh: Mesh, axis: str
    ):
        self.op = op
        self.operand_types = [value.type for value in op.operands]
        self.rule = rule
        self.mesh = mesh
        self.axis = axis
        self.parts = mesh.size(axis)
        self.base = base
        self.assignment = base.assignment(mesh)
        self.operand_bytes = [
            local_bytes(v, layout, mesh)
            for v, layout in zip(op.operands, self.base.operands, strict=True)
        ]
        self.result_bytes = [
            local_bytes(v, layout, mesh)
            for v, layout in zip(op.results, self.base.results, strict=True)
        ]
        split = prod(
            mesh.size(s.axis)
            for shards in self.assignment.values()
            for s in shards
            if s.axis != TIME_AXIS
        )
        self.flops = rule.flops / split
        self._candidates: dict[tuple[int | None, int | None], AxisStrategy | None] = {}
        self._fitting: dict[tuple[int, Placement], Placement | None] = {}
        self._factors: dict[
            tuple[bool, int, Placement], tuple[int, int | None] | None
        ] = {}

    def local_size(self, factor: int) -> int:
        """The size of a factor after the axes before."""
        shards = self.assignment.get(factor, ())
        return self.rule.factors[factor].size // prod(
            self.mesh.size(s.axis) for s in shards
        )

    def candidate(self, factor: int | None, run: int | None) -> AxisStrategy | None:
        """Splitting that factor (None: nothing), or None if the rule forbids it."""
        key = (factor, run)
        if key not in self._candidates:
            self._candidates[key] = self._candidate(factor, run)
        return self._candidates[key]

    def _candidate(self, factor: int | None, run: int | None) -> AxisStrategy | None:
        rule, decomposed = self.rule, factor in self.rule.decomposed
        if factor is None:
            operands = (WHOLE,) * len(self.operand_bytes)
            results = (WHOLE,) * len(self.result_bytes)
        else:
            kind = rule.factors[factor].kind
            size = self.local_size(factor)
            if kind == "replicate" or size % ((run or 1) * self.parts):
                return None
            if run is not None and run * self.parts == size:
                run = None
            shard = Shard(self.axis, run)
            before = self.assignment.get(factor, ())
            assignment = {**self.assignment, factor: (*before, shard)}
            operands = self._placements(rule.operands, factor, assignment)
            results = self._placements(rule.results, factor, assignment)
            monoid = rule.factors[factor].monoid
            reduced = rule.partial_results.get(factor, frozenset())
            results = tuple(
                Placement("partial", monoid=monoid) if i in reduced else p
                for i, p in enumerate(results)
            )
            if kind == "reduction":
                # After decomposition the reduced value is whole: what comes behind the
                # reduction needs it so.
                after = WHOLE if decomposed else Placement("partial", monoid=monoid)
                results = tuple(after for _ in results)
        work = self.flops / (1 if factor is None else self.parts)
        touched = sum(
            size / (self.parts if p.kind == "split" else 1)
            for size, p in zip(
                (*self.operand_bytes, *self.result_bytes),
                (*operands, *results),
                strict=True,
            )
        )
        work += PRICE_PER_BYTE_TOUCHED * touched
        if decomposed:
            work += self._price_of_parts(operands)
        return AxisStrategy(Option(factor, run), operands, results, work, decomposed)

    def _price_of_parts(self, placements: Sequence[Placement]) -> float:
        """Of bringing together what the ops of the decomposition leave partial."""
        layouts = [
            add_placement(layout, self.axis, placement, rank_of(type_))
            for layout, placement, type_ in zip(
                self.base.operands, placements, self.operand_types, strict=True
            )
        ]
        parts = decompose(self.op)
        if parts is None:
            return inf
        try:
            found = layouts_of_parts(self.op, parts, layouts, self.mesh)
            return (
                inf
                if found is None
                else sum(
                    reduce_price(local_bytes(value, layout, self.mesh), self.parts)
                    for part, own in zip(parts, found, strict=True)
                    for value, layout in zip(part.results, own.results, strict=True)
                    if self.axis in layout.partial_axes
                )
            )
        finally:
            discard(parts)

    def _placements(
        self,
        values: Sequence[Sequence[tuple[int, ...]]],
        factor: int,
        assignment: Mapping[int, tuple[Shard, ...]],
    ) -> tuple[Placement, ...]:
        out: list[Placement] = []
        for dims in values:
            placement = WHOLE
            for d, dim in enumerate(dims):
                if factor in dim:
                    for shard in dim_shards(dim, self.rule, assignment, self.mesh):
                        if shard.axis == self.axis:
                            placement = Placement("split", d, shard.run)
            out.append(placement)
        return tuple(out)

    def factor_of(
        self, is_result: bool, index: int, placement: Placement
    ) -> tuple[int, int | None] | None:
        """The factor (and run on it) that a split of an operand or result means."""
        key = (is_result, index, placement)
        if key not in self._factors:
            dims = (self.rule.results if is_result else self.rule.operands)[index]
            base = (self.base.results if is_result else self.base.operands)[index]
            found: tuple[int, int | None] | None = None
            if placement.dim < len(dims):
                shards = (
                    *base.dim(placement.dim),
                    Shard(self.axis, placement.run),
                )
                split = factor_shards(shards, dims[placement.dim], self.rule, self.mesh)
                for factor, own in (split or {}).items():
                    for shard in own:
                        if shard.axis == self.axis:
                            found = (factor, shard.run)
            self._factors[key] = found
        return self._factors[key]

    def fitting(self, index: int, placement: Placement) -> Placement | None:
        """
        That split of an operand inside the axes before, which may split the operand
        otherwise than where the placement comes from; None if its sizes forbid it.
        """
        key = (index, placement)
        if key not in self._fitting:
            type_, base = self.operand_types[index], self.base.operands[index]
            layout = add_placement(base, self.axis, placement, rank_of(type_))
            found: Placement | None = None
            if fits(shape_of(type_), layout, self.mesh):
                own = canonical(shape_of(type_), layout, self.mesh)
                found = placement_in(own, self.axis)
            self._fitting[key] = found
        return self._fitting[key]
