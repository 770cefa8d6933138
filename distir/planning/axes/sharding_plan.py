"""
The layouts of a whole program, chosen one mesh axis after another.

`propagate-sharding` and `tensor-parallel` are both thin over this: the first applies
what was planned to every op, the second only reads off what they do to the
parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp, Layout
from distir.errors import DistIRError
from distir.planning.annotate import annotate, decomposed, parts_of, separated
from distir.planning.annotations import requested_layout
from distir.planning.axes.axis import AxisPlanner
from distir.planning.axes.axis_op import AxisStrategy
from distir.planning.axes.axis_plan import ArgumentKey, AxisPlan, Source
from distir.planning.axes.micro_batches import MicroBatchPlanner
from distir.planning.axes.program import AxisProgram
from distir.planning.function_plan import FunctionPlan, with_callees
from distir.planning.strategies import Strategy
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    describe,
    entry_function,
    reachable_functions,
    return_op,
)
from distir.sharding.decompose import discard, layouts_of_parts
from distir.sharding.layout import check_layout
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import (
    FREE,
    WHOLE,
    Placement,
    add_placement,
    placement_in,
)
from distir.sharding.rule import Dim, layout_for, rank_of, shape_of
from distir.sharding.signatures import Signatures

SOURCES: Mapping[str, Source] = {
    "parameter": "parameter",
    "state": "parameter",
    "constant": "constant",
}
"""What an argument of each role is for the chooser; any other is an activation."""


class ShardingPlan:
    """
    The layouts chosen so far for every op and argument, on one mesh. Functions that
    are called with different layouts are cloned as axes are added.
    """

    def __init__(self, module: ModuleOp, mesh: Mesh):
        self.module = module
        self.mesh = mesh
        self.entry = entry_function(module)
        self.requests = [
            requested_layout(attributes)
            for attributes in argument_attributes(self.entry)
        ]
        self.signatures = Signatures()
        self._check_requests()
        self.plan = self._whole()

    def _check_requests(self) -> None:
        names = argument_names(self.entry)
        for i, layout in enumerate(self.requests):
            if layout is None:
                continue
            what = f"argument {names[i]!r}"
            self._check_request(
                layout, shape_of(self.entry.function_type.inputs.data[i]), what
            )
        for function in reachable_functions(self.module):
            for op in function.body.block.ops:
                if isinstance(op, ConstrainOp):
                    shape = shape_of(op.source.type)
                    self._check_request(op.layout.data, shape, describe(op))

    def _check_request(self, layout: Layout, shape: tuple[int, ...], what: str) -> None:
        if layout.mesh != self.mesh.name:
            raise DistIRError(
                f"{what}: a layout on mesh @{layout.mesh} was requested, but this "
                f"program is distributed over @{self.mesh.name}"
            )
        check_layout(shape, layout, self.mesh, what)

    def _whole(self) -> FunctionPlan:
        """Nothing is split."""
        plans: dict[str, FunctionPlan] = {}
        layout = Layout(self.mesh.name)
        for function in reachable_functions(self.module):
            plan = FunctionPlan(
                function,
                [layout] * len(function.body.block.args),
                [layout] * len(return_op(function).operands),
                {
                    op: Strategy.whole(op, self.mesh)
                    for op in function.body.block.ops
                    if not isinstance(op, CallOp | ReturnOp)
                },
                {
                    op: plans[op.callee.string_value()]
                    for op in function.body.block.ops
                    if isinstance(op, CallOp)
                },
            )
            plans[function.sym_name.data] = plan
        return plans[self.entry.sym_name.data]

    def seen_by(self, axis: str) -> AxisProgram:
        """The program as one more axis sees it."""
        strategies = self._strategies()
        return AxisProgram(self.module, self.mesh, axis, strategies, self.signatures)

    def _strategies(self) -> dict[Operation, Strategy]:
        """What the axes so far do to each op, also to calls and returns."""
        found: dict[Operation, Strategy] = {}
        for plan in with_callees(self.plan):
            found.update(plan.ops)
            for call, callee in plan.calls.items():
                layouts = tuple(callee.arguments), tuple(callee.results)
                found[call] = Strategy((), *layouts)
            found[return_op(plan.function)] = Strategy((), tuple(plan.results), ())
        return found

    def solve(
        self, axis: str, *, free_parameters: bool, is_forward: bool = False
    ) -> AxisPlan:
        """
        The cheapest plan for one axis given those before. With `free_parameters`,
        parameters without a request may be split as suits; `is_forward` says that this is
        the forward of a training step. Where the ops of a decomposition leave the op's own
        result partial, which may then be brought together otherwise or later, the op is
        decomposed at once.
        """
        self.mesh.size(axis)
        while True:
            keys = self._entry_keys(axis, free_parameters)
            # On an axis that splits the inputs, parameters and states may be stored
            # split (ZeRO), but they do not decide how the work is split.
            data = any(s == "activation" and p.kind == "split" for p, s in keys)
            stored = any(s == "parameter" and p.kind != "whole" for p, s in keys)
            program = self.seen_by(axis)
            planner = AxisPlanner(
                program, split_parameters=stored and not data, is_forward=is_forward
            )
            found = planner.solve(keys)
            split = self._decomposed(axis, found, program.strategies)
            if not any(self._leaves_result_partial(axis, *x) for x in split.items()):
                return found
            self._decompose_now(split)

    def _decomposed(
        self, axis: str, found: AxisPlan, before: Mapping[Operation, Strategy]
    ) -> dict[Operation, Strategy]:
        """The ops that a plan for the axis decomposes, with what it does to them."""
        return {
            op: self._with_axis(axis, op, before[op], strategy)
            for plan in with_callees(found)
            for op, strategy in plan.ops.items()
            if strategy.decompose
        }

    def _leaves_result_partial(self, axis: str, op: Operation, s: Strategy) -> bool:
        parts = parts_of(op)
        try:
            return any(
                value.type == op.results[0].type and axis in layout.partial_axes
                for part, own in zip(parts, s.parts, strict=True)
                for value, layout in zip(part.results, own.results, strict=True)
            )
        finally:
            discard(parts)

    def _decompose_now(self, ops: Collection[Operation]) -> None:
        """Replaces ops by those of their decompositions, for all axes to come."""
        for plan in with_callees(self.plan):
            own = dict(plan.ops)
            for op in ops:
                if op in own:
                    own[op] = replace(own[op], parts=self._parts(op, own[op]))
            plan.ops = decomposed(replace(plan, ops=own)).ops

    def _parts(self, op: Operation, strategy: Strategy) -> tuple[Strategy, ...]:
        """What the ops of an op's decomposition do where it takes its operands like that."""
        parts = parts_of(op)
        try:
            found = layouts_of_parts(op, parts, strategy.operands, self.mesh)
            assert found is not None  # what costs infinitely much is not chosen
            axes = [axis for axis, _ in self.mesh.axes[: len(strategy.options)]]
            return Strategy.of_parts(found, axes)
        finally:
            discard(parts)

    def _entry_keys(self, axis: str, free_parameters: bool) -> list[ArgumentKey]:
        keys: list[ArgumentKey] = []
        for role, request in zip(
            argument_roles(self.entry), self.requests, strict=True
        ):
            placement = placement_in(request or Layout(self.mesh.name), axis)
            source = SOURCES.get(role, "activation")
            if free_parameters and source == "parameter" and placement == WHOLE:
                placement = FREE
            keys.append((placement, source))
        return keys

    def add_axis(self, axis: str) -> None:
        """Plans one more axis, for every op."""
        if axis == TIME_AXIS:
            found = self._micro_batches(axis)
        else:
            found = self.solve(axis, free_parameters=False)
        self.plan = separated(self.module, self._with_plan(axis, found))
        for plan in with_callees(self.plan):
            plan.ops = decomposed(plan).ops

    def _micro_batches(self, axis: str) -> AxisPlan:
        """What splitting the batch over time does; the first axis of a mesh."""
        if axis != self.mesh.axes[0][0]:
            raise DistIRError(
                f"mesh @{self.mesh.name}: the axis over time, {axis!r}, must be its first"
            )
        keys = [p for p, _ in self._entry_keys(axis, False)]
        return MicroBatchPlanner(self.seen_by(axis)).solve(keys)

    def _with_plan(self, axis: str, found: AxisPlan) -> FunctionPlan:
        """The plan of all axes before, and of this one."""
        plans = {p.function: p for p in with_callees(self.plan)}
        # Ops that are alike and treated alike share their strategy.
        shared: dict[tuple[int, Strategy, AxisStrategy], Strategy] = {}
        combined: dict[AxisPlan, FunctionPlan] = {}

        def strategy(op: Operation, before: Strategy, own: AxisStrategy) -> Strategy:
            key = self.signatures.of(op), before, own
            if key not in shared:
                shared[key] = self._with_axis(axis, op, before, own)
            return shared[key]

        def combine(own: AxisPlan) -> FunctionPlan:
            if own not in combined:
                before, block = plans[own.function], own.function.body.block
                returned = return_op(own.function).operands
                combined[own] = FunctionPlan(
                    own.function,
                    self._placed(axis, before.arguments, own.arguments, block.args),
                    self._placed(axis, before.results, own.results, returned),
                    {op: strategy(op, before.ops[op], s) for op, s in own.ops.items()},
                    {call: combine(callee) for call, callee in own.calls.items()},
                )
            return combined[own]

        return combine(found)

    def _placed(
        self,
        axis: str,
        layouts: Sequence[Layout],
        placements: Sequence[Placement],
        values: Sequence[SSAValue],
    ) -> tuple[Layout, ...]:
        return tuple(
            add_placement(layout, axis, placement, rank_of(value.type))
            for layout, placement, value in zip(
                layouts, placements, values, strict=True
            )
        )

    def _with_axis(
        self, axis: str, op: Operation, before: Strategy, own: AxisStrategy
    ) -> Strategy:
        """What all axes before do to an op, and this one."""
        options = (*before.options, own.option)
        operands = self._placed(axis, before.operands, own.operands, op.operands)
        results = self._placed(axis, before.results, own.results, op.results)
        found = Strategy(options, operands, results)
        if own.decompose:
            return replace(found, parts=self._parts(op, found))
        if own.option.factor is None:
            return found
        rule, assignment = self.signatures.rule(op), found.assignment(self.mesh)

        def layouts(
            values: Sequence[Sequence[Dim]], old: Sequence[Layout]
        ) -> tuple[Layout, ...]:
            return tuple(
                layout_for(dims, rule, assignment, self.mesh, layout.partial)
                for dims, layout in zip(values, old, strict=True)
            )

        return replace(
            found,
            operands=layouts(rule.operands, operands),
            results=layouts(rule.results, results),
        )

    def annotate(self) -> None:
        """
        Writes the layouts onto every op and argument of the functions that the entry
        reaches as attributes. Without any axis they are whole.
        """
        self._check_order()
        annotate(self.module, self.plan)

    def _check_order(self) -> None:
        """A dimension's axes are chosen in the mesh's order; requests must agree."""
        names = argument_names(self.entry)
        requests = [
            (f"argument {names[i]!r}", request, self.plan.arguments[i])
            for i, request in enumerate(self.requests)
            if request is not None
        ]
        for plan in with_callees(self.plan):
            for op, strategy in plan.ops.items():
                if isinstance(op, ConstrainOp):
                    chosen = self._only_fixed(op, strategy.results[0])
                    requests.append((describe(op), op.layout.data, chosen))
        for what, request, chosen in requests:
            if request != chosen:
                raise DistIRError(
                    f"{what}: layout {request} was requested, but {chosen} is what the "
                    f"mesh's order of axes gives; list the axes of a dimension in the "
                    f"order of mesh @{self.mesh.name}"
                )

    def _only_fixed(self, op: ConstrainOp, chosen: Layout) -> Layout:
        """What was chosen for the axes that a constraint speaks of."""
        return Layout(
            chosen.mesh,
            tuple(tuple(s for s in dim if op.fixes(s.axis)) for dim in chosen.dims),
            tuple(p for p in chosen.partial if op.fixes(p[0])),
        )


def propagate_sharding(module: ModuleOp, mesh: Mesh) -> None:
    """
    Annotates every op of a sequential program with layouts on a mesh that follow from those
    requested of arguments, axis after axis. Raises DistIRError.
    """
    plan = ShardingPlan(module, mesh)
    for axis, _ in mesh.axes:
        plan.add_axis(axis)
    plan.annotate()
