"""Writes a plan onto a sequential program as attributes, which `partition` reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import (
    LAYOUT,
    OPERAND_LAYOUTS,
    RESULT_LAYOUTS,
    ConstrainOp,
    Layout,
    LayoutAttr,
    layout_attr,
)
from distir.dialects.dist_attributes import SCOPE
from distir.errors import DistIRError
from distir.planning.graph.function_plan import FunctionPlan, with_callees
from distir.planning.graph.strategies import LayoutStrategy, OpLayouts
from distir.program import (
    argument_attributes,
    describe,
    return_op,
    set_argument_attributes,
    unique_name,
)
from distir.sharding.decompose import decompose, equal_before


def annotate(module: ModuleOp, plan: FunctionPlan[Layout]) -> None:
    """
    Writes the layouts of a plan to all ops and arguments that the entry function
    reaches, as attributes.

    A function whose calls have different plans is cloned, one copy for each plan. An op
    for which the plan chose a decomposition is replaced by the decomposition. If the
    plan keeps a value in a layout that differs from the computed one, a
    `dist.constrain` op brings the value to that layout.
    """
    writer = _Writer()
    for own in list(with_callees(separated(module, plan))):
        writer.write(decomposed(own))


def separated(module: ModuleOp, plan: FunctionPlan[Layout]) -> FunctionPlan[Layout]:
    """
    Returns the plan for a program in which each function has only one plan. A function
    with several plans is cloned in `module`, and its calls go to the clones.
    """
    return _Copies(module).of(plan, is_entry=True)


def is_settled(plan: FunctionPlan[Layout]) -> bool:
    """
    Whether each function has only one plan and the plan decomposes no op, so that
    `settled` would change nothing.
    """
    plans = list(with_callees(plan))
    return len({own.function for own in plans}) == len(plans) and not any(
        strategy.parts for own in plans for strategy in own.ops.values()
    )


def settled(module: ModuleOp, plan: FunctionPlan[Layout]) -> FunctionPlan[Layout]:
    """
    Returns the plan for a changed program. Changes `module`: clones functions that have
    several plans, and replaces ops for which the plan chose a decomposition by the new
    ops.
    """
    found = separated(module, plan)
    for own in with_callees(found):
        own.ops = decomposed(own).ops
    return found


def decomposed(plan: FunctionPlan[Layout]) -> FunctionPlan[Layout]:
    """
    Replaces, in one function, the ops for which the plan chose a decomposition. Returns
    the plan with the strategies of the new ops. If an earlier op already computes a
    part of a decomposition in the same layouts, the result of the earlier op is used
    instead. Raises DistIRError for an op that has no decomposition.
    """
    if not any(strategy.parts for strategy in plan.ops.values()):
        return plan
    ops: dict[Operation, LayoutStrategy] = {}
    values: dict[SSAValue, OpResult] = {}
    for op, strategy in plan.ops.items():
        if not strategy.parts:
            ops[op] = strategy
            continue
        parts = parts_of(op)
        ops.update(zip(parts, strategy.parts, strict=True))
        values.update(zip(op.results, parts[-1].results, strict=True))
        Rewriter.replace_op(op, parts)
        for part in parts[:-1]:
            same = equal_before(part)
            if same is None or same not in ops:
                continue
            if OpLayouts.of(ops[same]) == OpLayouts.of(ops[part]):
                del ops[part]
                Rewriter.replace_op(part, [], same.results)
    kept = {values.get(value, value): layout for value, layout in plan.kept.items()}
    return replace(plan, ops=ops, kept=kept)


def parts_of(op: Operation) -> list[Operation]:
    """
    Returns the new, detached ops of the decomposition of `op`. Raises DistIRError if
    `op` has no decomposition.
    """
    parts = decompose(op)
    if parts is None:
        raise DistIRError(
            f"{describe(op)} has a dimension that it cannot split by itself, and no "
            f"decomposition; register one (distir.sharding.decompose)"
        )
    return parts


class _Copies:
    """
    Gives every plan its own function by cloning functions. Equal plans share a
    function.
    """

    def __init__(self, module: ModuleOp):
        self.module = module
        self._copies: dict[Hashable, FunctionPlan[Layout]] = {}
        self._of_plan: dict[FunctionPlan[Layout], FunctionPlan[Layout]] = {}
        self._used: set[FuncOp] = set()

    def of(
        self, plan: FunctionPlan[Layout], *, is_entry: bool = False
    ) -> FunctionPlan[Layout]:
        """
        Returns `plan` for a function that no different plan uses, cloning the function
        if necessary. Plans with equal decisions get the same function.
        """
        if plan not in self._of_plan:
            calls = {call: self.of(callee) for call, callee in plan.calls.items()}
            key = (
                None if is_entry else (plan.function, *calls.values(), *_content(plan))
            )
            if key not in self._copies:
                self._copies[key] = self._copy(plan, calls)
            self._of_plan[plan] = self._copies[key]
        return self._of_plan[plan]

    def _copy(
        self, plan: FunctionPlan[Layout], calls: Mapping[CallOp, FunctionPlan[Layout]]
    ) -> FunctionPlan[Layout]:
        function = self._function(plan.function)
        if function is plan.function:
            copy = replace(plan, calls=calls)
        else:
            pairs = zip(
                plan.function.body.block.ops, function.body.block.ops, strict=True
            )
            new = dict(pairs)
            copy = replace(
                plan,
                function=function,
                ops={new[op]: strategy for op, strategy in plan.ops.items()},
                calls={_call(new[call]): callee for call, callee in calls.items()},
                kept={new[v.op].results[v.index]: x for v, x in plan.kept.items()},
            )
        for call, callee in copy.calls.items():
            call.properties["callee"] = SymbolRefAttr(callee.function.sym_name)
        return copy

    def _function(self, original: FuncOp) -> FuncOp:
        if original not in self._used:
            self._used.add(original)
            return original
        clone = original.clone()
        name = unique_name(self.module, original.sym_name.data)
        clone.properties["sym_name"] = StringAttr(name)
        Rewriter.insert_op(clone, InsertPoint.after(original))
        return clone


def _call(op: Operation) -> CallOp:
    assert isinstance(op, CallOp)
    return op


def _content(plan: FunctionPlan[Layout]) -> Iterator[Hashable]:
    """
    Yields the layouts that distinguish two plans of the same function. The functions
    that this function calls are left out.
    """
    yield tuple(plan.arguments)
    yield tuple(plan.results)
    yield tuple(map(OpLayouts.of, plan.ops.values()))
    yield tuple(plan.kept.items())


class _Writer:
    """
    Writes the plans of functions into the IR. Ops with the same layouts share one
    attribute object.
    """

    def __init__(self) -> None:
        self._attributes: dict[tuple[Layout, ...], ArrayAttr[LayoutAttr]] = {}

    def write(self, plan: FunctionPlan[Layout]) -> None:
        """
        Writes the layouts of a plan to the ops and arguments of the plan's function.
        """
        attributes = argument_attributes(plan.function)
        for entry, layout in zip(attributes, plan.arguments, strict=True):
            entry[LAYOUT] = layout_attr(layout)
        set_argument_attributes(plan.function, attributes)
        self._request(return_op(plan.function), plan.results, ())
        for call, callee in plan.calls.items():
            self._request(call, callee.arguments, callee.results)
        for op, strategy in plan.ops.items():
            self._request(op, strategy.operands, strategy.results)
        for value, layout in plan.kept.items():
            given = plan.ops[value.op].results if value.op in plan.ops else None
            if given is None:
                assert isinstance(value.op, CallOp)
                given = plan.calls[value.op].results
            if given[value.index] != layout:
                self._keep(value, layout)

    def _request(
        self, op: Operation, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> None:
        for name, layouts in ((OPERAND_LAYOUTS, operands), (RESULT_LAYOUTS, results)):
            if layouts:
                key = tuple(layouts)
                if key not in self._attributes:
                    self._attributes[key] = ArrayAttr(map(layout_attr, key))
                op.attributes[name] = self._attributes[key]

    def _keep(self, value: OpResult, layout: Layout) -> None:
        """
        Inserts a `dist.constrain` op that brings `value` to `layout`, after the op that
        computes it. All uses of the value take the result of the new op.
        """
        constrain = ConstrainOp(value, layout)
        self._request(constrain, [layout], [layout])
        if SCOPE in value.op.attributes:
            constrain.attributes[SCOPE] = value.op.attributes[SCOPE]
        Rewriter.insert_op(constrain, InsertPoint.after(value.op))
        for use in list(value.uses):
            if use.operation is not constrain:
                use.operation.operands[use.index] = constrain.result
