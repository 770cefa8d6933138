"""
The layouts of a whole program, chosen one mesh axis after another.

`propagate-sharding` and `tensor-parallel` are both thin over this: the first applies
what the axes' choosers find to every op, the second only reads off what they do to the
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import (
    LAYOUT,
    OPERAND_LAYOUTS,
    RESULT_LAYOUTS,
    ConstrainOp,
    Layout,
    LayoutAttr,
    Shard,
)
from distir.errors import DistIRError
from distir.planning.annotations import requested_layout
from distir.planning.axes.axis import AxisPlanner
from distir.planning.axes.candidates import (
    OpLayouts,
)
from distir.planning.axes.choices import (
    ArgumentKey,
    FunctionChoice,
    OpChoice,
    Source,
)
from distir.planning.axes.decomposer import Decomposer
from distir.planning.axes.micro_batches import (
    MicroBatchChooser,
)
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    describe,
    entry_function,
    functions,
    reachable_functions,
    return_op,
    set_argument_attributes,
    unique_name,
    updated_arguments,
)
from distir.sharding.layout import check_layout
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import (
    FREE,
    WHOLE,
    Placement,
    add_placement,
    placement_in,
)
from distir.sharding.rule import (
    Dim,
    layout_for,
    rank_of,
    shape_of,
)
from distir.sharding.signatures import (
    Signatures,
)

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
        self.ops: dict[Operation, OpLayouts] = {}
        self.arguments: dict[FuncOp, list[Layout]] = {}
        self.signatures = Signatures()
        self._check_requests()

    def _check_requests(self) -> None:
        names = argument_names(self.entry)
        for i, attributes in enumerate(argument_attributes(self.entry)):
            layout = requested_layout(attributes)
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

    def solve(
        self, axis: str, *, free_parameters: bool, is_forward: bool = False
    ) -> tuple[AxisPlanner, FunctionChoice]:
        """
        The cheapest choice for one axis given those before. With `free_parameters`,
        parameters without a request may be split as suits; `is_forward` says that this is
        the forward of a training step. Ops that the choice splits where only their
        decompositions can be split are decomposed.
        """
        self.mesh.size(axis)
        while True:
            keys = self._entry_keys(axis, free_parameters)
            # On an axis that splits the inputs, parameters and states may be stored
            # split (ZeRO), but they do not decide how the work is split.
            data = any(s == "activation" and p.kind == "split" for p, s in keys)
            stored = any(s == "parameter" and p.kind != "whole" for p, s in keys)
            chooser = AxisPlanner(
                functions(self.module),
                self.entry.sym_name.data,
                self.mesh,
                axis,
                self.ops,
                split_parameters=stored and not data,
                updates=updated_arguments(self.entry),
                signatures=self.signatures,
                is_forward=is_forward,
            )
            choice = chooser.solve(self.entry.sym_name.data, keys)
            if Decomposer(self.ops, reachable(choice), self.mesh, axis).run():
                return chooser, choice

    def _entry_keys(self, axis: str, free_parameters: bool) -> list[ArgumentKey]:
        keys: list[ArgumentKey] = []
        for role, attributes in zip(
            argument_roles(self.entry), argument_attributes(self.entry), strict=True
        ):
            layout = requested_layout(attributes) or Layout(self.mesh.name)
            placement = placement_in(layout, axis)
            source = SOURCES.get(role, "activation")
            if free_parameters and source == "parameter" and placement == WHOLE:
                placement = FREE
            keys.append((placement, source))
        return keys

    def add_axis(self, axis: str) -> None:
        """Chooses for one more axis and records the outcome for every op."""
        if axis == TIME_AXIS:
            self._record(axis, self._micro_batches(axis))
        else:
            self._record(axis, self.solve(axis, free_parameters=False)[1])

    def _micro_batches(self, axis: str) -> FunctionChoice:
        """What splitting the batch over time does; the first axis of a mesh."""
        if self.ops:
            raise DistIRError(
                f"mesh @{self.mesh.name}: the axis over time, {axis!r}, must be its first"
            )
        chooser = MicroBatchChooser(
            functions(self.module),
            self.entry.sym_name.data,
            self.mesh,
            axis,
            updated_arguments(self.entry),
            self.signatures,
        )
        keys = [p for p, _ in self._entry_keys(axis, False)]
        return chooser.solve(self.entry.sym_name.data, keys)

    def _record(self, axis: str, choice: FunctionChoice) -> None:
        """Adds what an axis does to the layouts of every op."""
        known = functions(self.module)
        before, arguments = self.ops, self.arguments
        self.ops, self.arguments = {}, {}
        variants: dict[FunctionChoice, FuncOp] = {}
        # Ops that are alike and treated alike share their layouts, also for the next axis.
        shared: dict[tuple[object, ...], OpLayouts] = {}
        taken = {self.entry.sym_name.data}
        pending = [(choice, self.entry, self.entry)]
        while pending:
            solved, original, function = pending.pop()
            pairs = zip(original.body.block.ops, function.body.block.ops, strict=True)
            copies = dict(pairs)
            for op_choice in solved.ops:
                op = copies[op_choice.op]
                chosen = op_choice.callee
                if chosen is not None:
                    if chosen not in variants:
                        callee = known[chosen.name]
                        variants[chosen] = self._variant(callee, taken)
                        pending.append((chosen, callee, variants[chosen]))
                    name = variants[chosen].sym_name.data
                    op.properties["callee"] = SymbolRefAttr(name)
                base = before.get(op_choice.op)
                key = (
                    self.signatures.of(op_choice.op, base),
                    op_choice.factor,
                    op_choice.run,
                    op_choice.operands,
                    op_choice.results,
                )
                if key not in shared:
                    base = base or self._whole(op)
                    shared[key] = self._with_choice(op, base, op_choice, axis)
                self.ops[op] = shared[key]
            old_return, new_return = return_op(original), return_op(function)
            base = before.get(old_return) or self._whole(new_return)
            self.ops[new_return] = OpLayouts(
                self._placed(base.operands, solved.results, new_return.operands, axis),
                [],
            )
            args = function.body.block.args
            whole = [Layout(self.mesh.name)] * len(args)
            self.arguments[function] = self._placed(
                arguments.get(original, whole), solved.arguments, args, axis
            )

    def _whole(self, op: Operation) -> OpLayouts:
        whole = Layout(self.mesh.name)
        return OpLayouts([whole] * len(op.operands), [whole] * len(op.results))

    def _variant(self, original: FuncOp, taken: set[str]) -> FuncOp:
        """The function itself for its first set of layouts, a clone for others."""
        name = original.sym_name.data
        if name not in taken:
            taken.add(name)
            return original
        clone = original.clone()
        clone.properties["sym_name"] = StringAttr(unique_name(self.module, name))
        Rewriter.insert_op(clone, InsertPoint.after(original))
        return clone

    def _placed(
        self,
        layouts: Sequence[Layout],
        placements: Sequence[Placement],
        values: Sequence[SSAValue],
        axis: str,
    ) -> list[Layout]:
        return [
            add_placement(layout, axis, placement, rank_of(value.type))
            for layout, placement, value in zip(
                layouts, placements, values, strict=True
            )
        ]

    def _with_choice(
        self, op: Operation, base: OpLayouts, choice: OpChoice, axis: str
    ) -> OpLayouts:
        """The layouts of an op with one more axis, from the factor that it splits."""
        if choice.factor is None:
            return OpLayouts(
                self._placed(base.operands, choice.operands, op.operands, axis),
                self._placed(base.results, choice.results, op.results, axis),
                base.assignment,
            )
        rule = self.signatures.rule(op)
        shards = (*base.assignment.get(choice.factor, ()), Shard(axis, choice.run))
        assignment = {**base.assignment, choice.factor: shards}

        def layouts(
            values: Sequence[Sequence[Dim]],
            old: Sequence[Layout],
            placements: Sequence[Placement],
        ) -> list[Layout]:
            found: list[Layout] = []
            for dims, layout, placement in zip(values, old, placements, strict=True):
                split = layout_for(dims, rule, assignment, self.mesh, layout.partial)
                if placement.kind == "partial":
                    split = add_placement(split, axis, placement, len(dims))
                found.append(split)
            return found

        return OpLayouts(
            layouts(rule.operands, base.operands, choice.operands),
            layouts(rule.results, base.results, choice.results),
            assignment,
        )

    def annotate(self) -> None:
        """
        Writes the layouts onto every op and argument of the functions that the entry
        reaches as attributes. Without any axis they are whole.
        """
        for function in reachable_functions(self.module):
            args = function.body.block.args
            self.arguments.setdefault(function, [Layout(self.mesh.name)] * len(args))
        self._check_order()
        written: dict[int, tuple[Attribute, Attribute, OpLayouts]] = {}
        for function, layouts in self.arguments.items():
            attributes = argument_attributes(function)
            for entry, layout in zip(attributes, layouts, strict=True):
                entry[LAYOUT] = LayoutAttr(layout)
            set_argument_attributes(function, attributes)
            for op in function.body.block.ops:
                chosen = self.ops.get(op) or self._whole(op)
                if id(chosen) not in written:
                    written[id(chosen)] = (
                        ArrayAttr([LayoutAttr(x) for x in chosen.operands]),
                        ArrayAttr([LayoutAttr(x) for x in chosen.results]),
                        chosen,
                    )
                operands, results, _ = written[id(chosen)]
                if chosen.operands:
                    op.attributes[OPERAND_LAYOUTS] = operands
                if chosen.results:
                    op.attributes[RESULT_LAYOUTS] = results

    def _check_order(self) -> None:
        """A dimension's axes are chosen in the mesh's order; requests must agree."""
        names = argument_names(self.entry)
        requests: list[tuple[str, Layout, Layout]] = []
        for i, attributes in enumerate(argument_attributes(self.entry)):
            request = requested_layout(attributes)
            if request is not None:
                chosen = self.arguments[self.entry][i]
                requests.append((f"argument {names[i]!r}", request, chosen))
        for op, layouts in self.ops.items():
            if isinstance(op, ConstrainOp):
                chosen = self._only_fixed(op, layouts.results[0])
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


def reachable(choice: FunctionChoice) -> list[FunctionChoice]:
    """The choices that a solution uses for the functions it calls, its own first."""
    found: dict[FunctionChoice, None] = {choice: None}
    pending = [choice]
    while pending:
        for op_choice in pending.pop().ops:
            callee = op_choice.callee
            if callee is not None and callee not in found:
                found[callee] = None
                pending.append(callee)
    return list(found)
