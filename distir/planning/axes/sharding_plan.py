"""
The layouts of a whole program, chosen for one mesh axis after another.

The passes `propagate-sharding` and `tensor-parallel` both choose layouts in this way.
`propagate-sharding` writes the layouts of every op into the program; `tensor-parallel`
writes only the splits of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp, Layout
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.planning.annotations import add_notes, fixed_axes, requested_layout
from distir.planning.axes.alternatives import Source
from distir.planning.axes.axis import AxisPlanner
from distir.planning.axes.axis_op import AxisProgram, placed
from distir.planning.axes.micro_batches import MicroBatchPlanner
from distir.planning.axes.reach import ArgumentKey
from distir.planning.graph.annotate import annotate, is_settled, settled
from distir.planning.graph.function_plan import AxisPlan, FunctionPlan, with_callees
from distir.planning.graph.strategies import LayoutStrategy, Strategy
from distir.planning.graph.unruled import unruled_ops
from distir.planning.graph.written_plan import WrittenPlan
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    describe,
    entry_function,
    reachable_functions,
    return_op,
)
from distir.program.functions import check_executed
from distir.sharding.layout import check_layout, in_mesh_order, nested
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import FREE, REPLICATED, SplitPlacement, placement_in
from distir.sharding.prices import local_bytes
from distir.sharding.signatures import Signatures

SOURCES: Mapping[str, Source] = {
    "parameter": "parameter",
    "state": "parameter",
    "cache": "parameter",
    "constant": "constant",
}
"""
The source (`Source`) of arguments by their role. A cache is stored as its users take it,
as parameters are. Arguments of any other role are activations.
"""


class ShardingPlan:
    """
    The layouts chosen so far for every op and argument of a program, on one mesh. As
    axes are added, functions that are called with different layouts get one copy per
    plan, and ops are replaced by their decompositions. `steps` holds the plans that led
    to these copies and replacements.
    """

    def __init__(self, module: ModuleOp, mesh: Mesh):
        self.module = module
        self.mesh = mesh
        self.entry = entry_function(module)
        check_executed(module, [self.entry])
        self.requests = [
            requested_layout(attributes)
            for attributes in argument_attributes(self.entry)
        ]
        """
        The layouts requested for the entry function's arguments, with axes in the
        mesh's order if possible; None for an argument without a request.
        """
        self.fixed = [fixed_axes(a) for a in argument_attributes(self.entry)]
        self.signatures = Signatures()
        self._check_requests()
        for i, request in enumerate(self.requests):
            if request is not None:
                shape = shape_of(self.entry.function_type.inputs.data[i])
                self.requests[i] = in_mesh_order(shape, request, mesh)
        self.plan = self._whole()
        self.steps: list[WrittenPlan] = []

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

    def _whole(self) -> FunctionPlan[Layout]:
        """Returns the plan that replicates all values."""
        plans: dict[str, FunctionPlan[Layout]] = {}
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
        """
        Returns the view of the program for the planning of `axis`, after the axes
        planned so far.
        """
        strategies = self._strategies()
        later = self._later_parts(axis)
        return AxisProgram(
            self.module, self.mesh, axis, strategies, self.signatures, later
        )

    def _later_parts(self, axis: str) -> float:
        """
        Returns the average number of parts into which the axes after `axis` split a
        parameter, weighted by bytes.
        """
        axes = [name for name, _ in self.mesh.axes]
        later = set(axes[axes.index(axis) + 1 :])
        left = 0.0
        for size, split in self._parameters:
            left += size / prod(self.mesh.size(name) for name in later & split)
        return sum(size for size, _ in self._parameters) / left if left else 1.0

    @cached_property
    def _parameters(self) -> list[tuple[float, frozenset[str]]]:
        """
        Returns a pair for each parameter: its bytes, and the axes over which the
        request for this parameter splits it.
        """
        whole = Layout(self.mesh.name)
        arguments, roles = self.entry.body.block.args, argument_roles(self.entry)
        return [
            (
                local_bytes(arg, whole, self.mesh),
                frozenset((request or whole).split_axes),
            )
            for arg, role, request in zip(arguments, roles, self.requests, strict=True)
            if role == "parameter"
        ]

    def _strategies(self) -> dict[Operation, LayoutStrategy]:
        """
        Returns the strategy of each op on the axes planned so far, including calls and
        returns.
        """
        found: dict[Operation, LayoutStrategy] = {}
        for plan in with_callees(self.plan):
            found.update(plan.ops)
            for call, callee in plan.calls.items():
                layouts = tuple(callee.arguments), tuple(callee.results)
                found[call] = Strategy((), *layouts)
            found[return_op(plan.function)] = Strategy((), tuple(plan.results), ())
        return found

    def solve(
        self,
        axis: str,
        *,
        free_parameters: bool,
        is_forward: bool = False,
        leaves_split: bool = False,
    ) -> tuple[AxisProgram, AxisPlan]:
        """
        Finds the cheapest plan for `axis`, given the plan of the axes before it.
        Returns the view of the program for this axis, and the plan.

        - `free_parameters`: whether parameters without a request may be split in any
          way;
        - `is_forward`: whether the program is the forward pass of a training step;
        - `leaves_split`: whether results may leave the program split at no cost.

        If the plan uses a decomposition that leaves the op's own result partial, ops
        are replaced by their decompositions and the axis is planned again. The partial
        result may then be reduced in another way or later.
        """
        self.mesh.size(axis)
        while True:
            keys = self._entry_keys(axis, free_parameters)
            data = self._splits_the_batch(axis, keys)
            stored = any(s == "parameter" and p is not REPLICATED for p, s in keys)
            program = self.seen_by(axis)
            planner = AxisPlanner(
                program,
                split_parameters=stored and not data,
                is_forward=is_forward,
                leaves_split=leaves_split,
            )
            found = planner.solve(keys)
            split = {
                op: strategy
                for plan in with_callees(found)
                for op, strategy in plan.ops.items()
                if strategy.parts
            }
            if not any(
                program.info(op).leaves_result_partial(s) for op, s in split.items()
            ):
                return program, found
            self._decompose_now({op: program.info(op).parts_before() for op in split})

    def _splits_the_batch(self, axis: str, keys: Sequence[ArgumentKey]) -> bool:
        """
        Whether `axis` splits the inputs. Parameters and states may then be stored split
        (ZeRO), but they do not decide how the work is split. An input is passed over if
        the user requested a split of a dimension that is not the first, such as the
        heads of a key-value cache.
        """
        return any(
            source == "activation"
            and isinstance(placement, SplitPlacement)
            and (placement.dim == 0 or axis not in fixed)
            for (placement, source), fixed in zip(keys, self.fixed, strict=True)
        )

    def _decompose_now(
        self, parts: Mapping[Operation, tuple[LayoutStrategy, ...]]
    ) -> None:
        """
        Replaces ops by their decompositions, for all axes that are planned later.
        `parts` holds the strategies of each decomposition's ops.
        """
        for plan in with_callees(self.plan):
            own = dict(plan.ops)
            for op in parts:
                if op in own:
                    own[op] = own[op]._replace(parts=parts[op])
            plan.ops = own
        self._settle(self.plan)

    def _entry_keys(self, axis: str, free_parameters: bool) -> list[ArgumentKey]:
        keys: list[ArgumentKey] = []
        for role, request, fixed in zip(
            argument_roles(self.entry), self.requests, self.fixed, strict=True
        ):
            placement = REPLICATED if request is None else placement_in(request, axis)
            source = SOURCES.get(role, "activation")
            is_free = free_parameters and axis not in fixed
            if is_free and source == "parameter" and placement == REPLICATED:
                placement = FREE
            keys.append((placement, source))
        return keys

    def add_axis(self, axis: str) -> None:
        """Plans `axis` for every op and adds the result to the plan."""
        if axis == TIME_AXIS:
            found = self._micro_batches(axis)
        else:
            found = self.solve(axis, free_parameters=False)
        self._settle(self._with_plan(*found))

    def _settle(self, plan: FunctionPlan[Layout]) -> None:
        """
        Makes `plan` the current plan. In the program, functions that have several plans
        are cloned, and ops are replaced by the decompositions that the plan chose.
        """
        if not is_settled(plan):
            self.steps.append(WrittenPlan.of(plan))
        self.plan = settled(self.module, plan)

    def _micro_batches(self, axis: str) -> tuple[AxisProgram, AxisPlan]:
        """
        Returns the view of the program and the plan that splits the batch into
        micro-batches, over `axis`. Raises DistIRError if `axis` is not the first axis
        of the mesh.
        """
        if axis != self.mesh.axes[0][0]:
            raise DistIRError(
                f"mesh @{self.mesh.name}: the micro-batch axis, {axis!r}, must be its first"
            )
        keys = [p for p, _ in self._entry_keys(axis, False)]
        program = self.seen_by(axis)
        return program, MicroBatchPlanner(program).solve(keys)

    def _with_plan(self, program: AxisProgram, found: AxisPlan) -> FunctionPlan[Layout]:
        """Returns the current plan, extended by the plan `found` of one more axis."""
        plans = {p.function: p for p in with_callees(self.plan)}
        combined: dict[AxisPlan, FunctionPlan[Layout]] = {}

        def combine(own: AxisPlan) -> FunctionPlan[Layout]:
            if own not in combined:
                before, block = plans[own.function], own.function.body.block
                arguments, results = (
                    placed(program.axis, old, new, [value.type for value in values])
                    for old, new, values in (
                        (before.arguments, own.arguments, block.args),
                        (
                            before.results,
                            own.results,
                            return_op(own.function).operands,
                        ),
                    )
                )
                combined[own] = FunctionPlan(
                    own.function,
                    arguments,
                    results,
                    {op: program.info(op).joined(s) for op, s in own.ops.items()},
                    {call: combine(callee) for call, callee in own.calls.items()},
                )
            return combined[own]

        return combine(found)

    def annotate(self) -> None:
        """
        Writes the layouts onto every op and argument of all reachable functions, as
        attributes, and adds the final plan to `steps`. If no axis was planned, all
        layouts are replicated. Raises DistIRError if a request orders axes differently
        from the mesh.
        """
        self._check_order()
        plan = self._nested()
        self.steps.append(WrittenPlan.of(plan))
        annotate(self.module, plan)

    def _nested(self) -> FunctionPlan[Layout]:
        """
        Returns the plan with the axes of every layout ordered so that communication
        along single axes can reach the layout.
        """
        known: dict[FunctionPlan[Layout], FunctionPlan[Layout]] = {}

        def of(plan: FunctionPlan[Layout]) -> FunctionPlan[Layout]:
            if plan not in known:
                block, end = plan.function.body.block, return_op(plan.function)
                known[plan] = replace(
                    plan,
                    arguments=self._all_nested(block.args, plan.arguments),
                    results=self._all_nested(end.operands, plan.results),
                    ops={
                        op: self._strategy_nested(op, s) for op, s in plan.ops.items()
                    },
                    calls={call: of(callee) for call, callee in plan.calls.items()},
                )
            return known[plan]

        return of(self.plan)

    def _strategy_nested(self, op: Operation, own: LayoutStrategy) -> LayoutStrategy:
        return own._replace(
            operands=tuple(self._all_nested(op.operands, own.operands)),
            results=tuple(self._all_nested(op.results, own.results)),
        )

    def _all_nested(
        self, values: Sequence[SSAValue], layouts: Sequence[Layout]
    ) -> list[Layout]:
        return [
            nested(shape_of(value.type), layout, self.mesh)
            for value, layout in zip(values, layouts, strict=True)
        ]

    def _check_order(self) -> None:
        """
        Checks that requests list the axes of a dimension in the mesh's order, which is
        the order of planning. Raises DistIRError for a request that lists axes
        differently.
        """
        names = argument_names(self.entry)
        requests = [
            (f"argument {names[i]!r}", request, self.plan.arguments[i])
            for i, request in enumerate(self.requests)
            if request is not None
        ]
        for plan in with_callees(self.plan):
            for op, strategy in plan.ops.items():
                if type(op) is ConstrainOp:
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
        """
        Returns the layout `chosen`, reduced to the axes that the constraint `op` fixes.
        """
        return Layout(
            chosen.mesh,
            tuple(tuple(s for s in dim if op.fixes(s.axis)) for dim in chosen.dims),
            tuple(p for p in chosen.partial if op.fixes(p[0])),
        )


def propagate_sharding(module: ModuleOp, mesh: Mesh) -> tuple[WrittenPlan, ...]:
    """
    Annotates every op of a sequential program with layouts on a mesh. The layouts
    follow from the layouts requested for the arguments, axis by axis. Returns the plans
    in the form that `ChosenLayouts` holds. Adds a note about ops without a sharding
    rule. Raises DistIRError if requests are invalid.
    """
    add_notes(module, unruled_ops(module))
    plan = ShardingPlan(module, mesh)
    for axis, _ in mesh.axes:
        plan.add_axis(axis)
    plan.annotate()
    return tuple(plan.steps)
