"""
The strategies of an op on one mesh axis, and the view of a program for the planning of
one axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation

from distir.dialects.dist import Layout, Shard
from distir.dialects.tensors import rank_of, shape_of
from distir.planning.costs.unit import UnitCosts
from distir.planning.graph.strategies import (
    AxisStrategy,
    LayoutStrategy,
    PassPartial,
    SplitFactor,
    Strategy,
)
from distir.program import (
    Program,
)
from distir.sharding.decompose import decompose, discard, layouts_of_parts
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import (
    REPLICATED,
    PartialPlacement,
    Placement,
    SplitPlacement,
    add_placement,
    placement_in,
)
from distir.sharding.prices import local_bytes
from distir.sharding.rule import (
    AxisDims,
    Dim,
    Rule,
    dim_shards,
    factor_shards,
    layout_for,
    operands_over,
    results_over,
)
from distir.sharding.signatures import Signatures


class Decomposition(NamedTuple):
    """
    A decomposition of an op on one mesh axis.

    - `parts`: the strategies of the decomposition's ops on all axes planned so far,
      this axis included;
    - `price`: the cost of reducing the values that these ops pass to each other and
      that are partial over this axis;
    - `exchanged`: the cost of the communication inside these ops while they compute;
    - `is_of_result`: whether one of the partial values is the result of the whole op.
    """

    parts: tuple[LayoutStrategy, ...]
    price: float
    exchanged: float
    is_of_result: bool


class AxisOp:
    """
    The strategies of an op on one mesh axis, given its strategy on the axes planned
    before this one (`base`). All ops with the same signature and the same `base` share
    one `AxisOp`.
    """

    def __init__(
        self,
        op: Operation,
        rule: Rule,
        base: LayoutStrategy,
        costs: UnitCosts,
        axis: str,
    ):
        self.op = op
        self.operand_types = [value.type for value in op.operands]
        self.rule = rule
        self.costs = costs
        self.mesh = mesh = costs.mesh
        self.axis = axis
        self.parts = mesh.size(axis)
        self.own = next((o for o in rule.axes_on(mesh) if o.axis == axis), None)
        """
        The splits that the op declares for this axis, because it communicates over the
        axis by itself; None for most ops.
        """
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
        repeats = repeats_of(base, mesh)
        self.moved_bytes = [
            size * (repeats if placement_in(layout, TIME_AXIS) == REPLICATED else 1)
            for size, layout in zip(self.operand_bytes, base.operands, strict=True)
        ]
        """
        The bytes that are moved when each operand comes from another place. If all
        micro-batches share a value but the op runs once per micro-batch, its bytes
        count once per micro-batch.
        """
        split = prod(
            mesh.size(s.axis)
            for shards in self.assignment.values()
            for s in shards
            if s.axis != TIME_AXIS
        )
        self.flops = rule.flops / split
        self._strategies: dict[SplitFactor | None, AxisStrategy | None] = {}
        self._costs: dict[AxisStrategy, float] = {}
        self._decompositions: dict[SplitFactor, Decomposition] = {}
        self._joined: dict[AxisStrategy, LayoutStrategy] = {}
        self._fitting: dict[tuple[int, Placement], Placement | None] = {}
        self._factors: dict[tuple[bool, int, SplitPlacement], SplitFactor | None] = {}

    def local_size(self, factor: int) -> int:
        """
        Returns the size of a factor on one device, after the splits of the axes planned
        before this one.
        """
        shards = self.assignment.get(factor, ())
        return self.rule.factors[factor].size // prod(
            self.mesh.size(s.axis) for s in shards
        )

    def strategy(self, split: SplitFactor | None) -> AxisStrategy | None:
        """
        Returns the strategy that splits the factor named by `split`, or the strategy
        that splits nothing if `split` is None. Returns None if the sharding rule or the
        sizes forbid the split.
        """
        if split not in self._strategies:
            self._strategies[split] = self._strategy(split)
        return self._strategies[split]

    def _strategy(self, split: SplitFactor | None) -> AxisStrategy | None:
        rule, parts = self.rule, ()
        if self.own is not None:
            return None if split is not None else self._declared(self.own)
        if split is None:
            operands = (REPLICATED,) * len(self.operand_bytes)
            results = (REPLICATED,) * len(self.result_bytes)
        else:
            factor, run = split
            kind = rule.factors[factor].kind
            size = self.local_size(factor)
            if kind == "replicate" or size % ((run or 1) * self.parts):
                return None
            if run is not None and run * self.parts == size:
                split, run = SplitFactor(factor), None
            shard = Shard(self.axis, run)
            before = self.assignment.get(factor, ())
            assignment = {**self.assignment, factor: (*before, shard)}
            operands = self._placements(rule.operands, factor, assignment)
            results = self._placements(rule.results, factor, assignment)
            reduction = rule.factors[factor].reduction
            reduced = rule.partial_results.get(factor, frozenset())
            results = tuple(
                PartialPlacement(reduction) if i in reduced else p
                for i, p in enumerate(results)
            )
            if kind == "reduction":
                results = (PartialPlacement(reduction),) * len(results)
            if factor in rule.decomposed:
                found = self._decompose(operands, kind == "reduction")
                if found is None:
                    return None
                self._decompositions[split] = found
                parts = tuple(self._on_axis(part) for part in found.parts)
                if kind == "reduction":
                    # A decomposition's result is whole, as what follows the reduction needs
                    # it whole.
                    results = (REPLICATED,) * len(results)
        return Strategy((split,), operands, results, parts)

    def _declared(self, own: AxisDims) -> AxisStrategy:
        """
        Returns the only strategy of an op that communicates over this axis itself.
        `own` are the dimensions that the op declares for the axis.
        """

        def split(dim: int | None) -> Placement:
            return REPLICATED if dim is None else SplitPlacement(dim)

        results = (
            PartialPlacement("sum") if i in own.sums else split(dim)
            for i, dim in enumerate(own.results)
        )
        return Strategy((None,), tuple(map(split, own.operands)), tuple(results))

    def _on_axis(self, strategy: LayoutStrategy) -> AxisStrategy:
        """
        Returns the part of `strategy` that concerns this axis. `strategy` covers all
        axes planned so far.
        """
        operands, results = (
            tuple(placement_in(layout, self.axis) for layout in layouts)
            for layouts in (strategy.operands, strategy.results)
        )
        return Strategy(strategy.options[-1:], operands, results)

    def _decompose(
        self, placements: Sequence[Placement], is_reduction: bool
    ) -> Decomposition | None:
        """
        Returns the decomposition of the op for operands in `placements`, or None if
        there is none. `is_reduction` says whether the op as a whole reduces the split
        dimension; the result of the whole op is then reduced too.
        """
        parts = decompose(self.op)
        if parts is None:
            return None
        try:
            operands = placed(
                self.axis, self.base.operands, placements, self.operand_types
            )
            found = layouts_of_parts(self.op, parts, operands, self.mesh)
            if found is None:
                return None
            # The last part's results are the op's own, which their users reduce, unless the
            # op as a whole is a reduction.
            pairs = list(zip(parts, found, strict=True))
            within = pairs if is_reduction else pairs[:-1]
            partial = [
                (value.type, local_bytes(value, layout, self.mesh))
                for part, own in within
                for value, layout in zip(part.results, own.results, strict=True)
                if self.axis in layout.partial_axes
            ]
            exchanged = sum(
                self.costs.exchange(part, own.operands) for part, own in pairs
            )
            axes = [axis for axis, _ in self.mesh.axes[: len(self.base.options) + 1]]
            sums = PartialPlacement("sum")
            return Decomposition(
                Strategy.of_parts(found, axes),
                sum(
                    self.costs.move(sums, REPLICATED, n, self.parts) for _, n in partial
                ),
                exchanged,
                any(type_ == self.op.results[0].type for type_, _ in partial),
            )
        finally:
            discard(parts)

    def parts_before(self) -> tuple[LayoutStrategy, ...]:
        """
        Returns the strategies, on the axes planned before this one, of the ops into
        which this op is decomposed.
        """
        found = self._decompose((REPLICATED,) * len(self.operand_types), True)
        assert found is not None  # else no axis decomposes it
        return tuple(part._replace(options=part.options[:-1]) for part in found.parts)

    def leaves_result_partial(self, strategy: AxisStrategy) -> bool:
        """
        Whether the decomposition that `strategy` uses leaves the op's own result
        partial.
        """
        (option,) = strategy.options
        if not isinstance(option, SplitFactor):
            return False
        found = self._decompositions.get(option)
        return found is not None and found.is_of_result

    def exchanged(self, strategy: AxisStrategy) -> float:
        """
        Returns the cost of the communication inside the ops of the decomposition that
        `strategy` uses. Returns 0 without a decomposition: an op that communicates by
        itself then comes from the user, and the planner does not choose its
        communication.
        """
        (option,) = strategy.options
        if not strategy.parts or not isinstance(option, SplitFactor):
            return 0.0
        return self._decompositions[option].exchanged

    def cost(self, strategy: AxisStrategy) -> float:
        """
        Returns the cost of the op on one device under `strategy`. It includes the
        reductions between the ops of a decomposition but not the communication inside
        them (`exchanged`).
        """
        known = self._costs.get(strategy)
        if known is None:
            (option,) = strategy.options
            places = (*strategy.operands, *strategy.results)
            touched = sum(
                size / (self.parts if isinstance(p, SplitPlacement) else 1)
                for size, p in zip(
                    (*self.operand_bytes, *self.result_bytes), places, strict=True
                )
            )
            has_runs = isinstance(option, SplitFactor) and option.run is not None
            is_split = isinstance(option, SplitFactor) or self.own is not None
            work = self.costs.work(
                self.flops / (self.parts if is_split else 1), touched
            )
            if isinstance(option, SplitFactor) and strategy.parts:
                work += self._decompositions[option].price
            is_late = isinstance(option, PassPartial)
            known = self.costs.preferred(work, late=is_late, runs=has_runs)
            self._costs[strategy] = known
        return known

    def joined(self, strategy: AxisStrategy) -> LayoutStrategy:
        """
        Returns the layouts of the op on all axes planned so far, with `strategy` on
        this axis added.
        """
        if strategy not in self._joined:
            self._joined[strategy] = self._join(strategy)
        return self._joined[strategy]

    def _join(self, own: AxisStrategy) -> LayoutStrategy:
        base, rule = self.base, self.rule
        (option,) = own.options
        result_types = [value.type for value in self.op.results]
        found = Strategy(
            (*base.options, option),
            placed(self.axis, base.operands, own.operands, self.operand_types),
            placed(self.axis, base.results, own.results, result_types),
        )
        if not isinstance(option, SplitFactor):
            return found
        if own.parts:
            return found._replace(parts=self._decompositions[option].parts)
        assignment = found.assignment(self.mesh)

        def layouts(
            values: Sequence[Sequence[Dim]], old: Sequence[Layout]
        ) -> tuple[Layout, ...]:
            return tuple(
                layout_for(dims, rule, assignment, self.mesh, layout.partial)
                for dims, layout in zip(values, old, strict=True)
            )

        planned = {name for name, _ in self.mesh.axes[: len(found.options)]}
        own_axes = [own for own in rule.axes_on(self.mesh) if own.axis in planned]
        operands = layouts(rule.operands, found.operands)
        results = layouts(rule.results, found.results)
        if own_axes:
            # Their sums are among the partial axes already.
            splits = [replace(own, sums=frozenset()) for own in own_axes]
            operands = operands_over(rule, own_axes, operands, self.mesh)
            results = results_over(rule, splits, results, self.mesh)
        return found._replace(operands=operands, results=results)

    def _placements(
        self,
        values: Sequence[Sequence[tuple[int, ...]]],
        factor: int,
        assignment: Mapping[int, tuple[Shard, ...]],
    ) -> tuple[Placement, ...]:
        out: list[Placement] = []
        for dims in values:
            placement = REPLICATED
            for d, dim in enumerate(dims):
                if factor in dim:
                    for shard in dim_shards(dim, self.rule, assignment, self.mesh):
                        if shard.axis == self.axis:
                            placement = SplitPlacement(d, shard.run)
            out.append(placement)
        return tuple(out)

    def factor_of(
        self, is_result: bool, index: int, placement: SplitPlacement
    ) -> SplitFactor | None:
        """
        Returns the factor and run length (block size) that this axis splits when an
        operand (or result, if `is_result`) has `placement`. Returns None if no factor
        fits.
        """
        key = (is_result, index, placement)
        if key not in self._factors:
            dims = (self.rule.results if is_result else self.rule.operands)[index]
            base = (self.base.results if is_result else self.base.operands)[index]
            found: SplitFactor | None = None
            if placement.dim < len(dims):
                shards = (
                    *base.dim(placement.dim),
                    Shard(self.axis, placement.run),
                )
                split = factor_shards(shards, dims[placement.dim], self.rule, self.mesh)
                for factor, own in (split or {}).items():
                    for shard in own:
                        if shard.axis == self.axis:
                            found = SplitFactor(factor, shard.run)
            self._factors[key] = found
        return self._factors[key]

    def fitting(self, index: int, placement: Placement) -> Placement | None:
        """
        Returns the split of operand `index` that corresponds to `placement`, a split of
        the same value where it is computed or used elsewhere. The axes planned before
        this one may split the value differently there. Returns None if the sizes do not
        allow the split.
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


def repeats_of(strategy: LayoutStrategy, mesh: Mesh) -> int:
    """
    Returns the number of times that an op with `strategy` runs in a step: once per
    micro-batch if it works on micro-batches, else once.
    """
    layouts = (*strategy.operands, *strategy.results)
    if any(placement_in(layout, TIME_AXIS) != REPLICATED for layout in layouts):
        return mesh.size(TIME_AXIS)
    return 1


def placed(
    axis: str,
    layouts: Sequence[Layout],
    placements: Sequence[Placement],
    types: Iterable[Attribute],
) -> tuple[Layout, ...]:
    """
    Returns the layouts of values after each value has received its placement on mesh
    axis `axis`. `layouts`, `placements` and `types` have one entry per value.
    """
    return tuple(
        add_placement(layout, axis, placement, rank_of(type_))
        for layout, placement, type_ in zip(layouts, placements, types, strict=True)
    )


class AxisProgram:
    """
    The view of a program for the planning of one mesh axis. It holds the strategies on
    the axes planned before this one, and offers the strategies on this axis.

    - `strategies`: the strategy of each op on the axes planned before this one,
      including calls and returns;
    - `signatures`: tells which ops are equal;
    - `functions`: the functions that the entry function reaches, by name;
    - `entry`: the entry function;
    - `costs`: the cost model for strategies and reshards;
    - `later_parts`: the average number of parts into which later axes split a
      parameter.
    """

    def __init__(
        self,
        module: ModuleOp,
        mesh: Mesh,
        axis: str,
        strategies: Mapping[Operation, LayoutStrategy],
        signatures: Signatures,
        later_parts: float = 1.0,
    ):
        self.mesh = mesh
        self.later_parts = later_parts
        self.costs = UnitCosts(mesh)
        self.axis = axis
        self.strategies = strategies
        self._program = Program(module)
        self.functions = {f.sym_name.data: f for f in self._program.functions}
        self.entry = self._program.entry
        self._signatures = signatures
        self._infos: dict[Operation, AxisOp] = {}
        self._known: dict[tuple[int, LayoutStrategy], AxisOp] = {}
        self._alike: dict[tuple[int, LayoutStrategy], AxisOp] = {}

    @property
    def updates(self) -> Mapping[int, int]:
        """
        Maps the index of an entry function's result to the index of an argument if the
        result replaces the argument in the next step, or is the gradient of the
        argument. The result gets the argument's placement. All other results are left
        out.
        """
        return self._program.links

    def info(self, op: Operation) -> AxisOp:
        """Returns the strategies of an op on this axis."""
        found = self._infos.get(op)
        if found is None:
            before = self.strategies[op]
            signature = self._signatures.of(op), before
            found = self._known.get(signature)
            if found is None:
                found = self._known[signature] = self._alike_info(op, before)
            self._infos[op] = found
        return found

    def _alike_info(self, op: Operation, before: LayoutStrategy) -> AxisOp:
        """
        Returns the strategies of an op. Ops with equal rules, such as slices of
        different rows, share one `AxisOp`. If a split decomposes an op, the op shares
        only with ops of its own signature, because its constants may decide the
        decomposition.
        """
        rule = self._signatures.rule(op)
        if rule.decomposed:
            return AxisOp(op, rule, before, self.costs, self.axis)
        key = self._signatures.form(op), before
        found = self._alike.get(key)
        if found is None:
            found = AxisOp(op, rule, before, self.costs, self.axis)
            self._alike[key] = found
        return found
