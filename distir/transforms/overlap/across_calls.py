"""
Moves communication into called functions and out of them. Reductions of a call's
results move into the function, where they can start as soon as their operand is
computed. Gathers of a function's arguments move to before the call. The backward
function of a pipeline stage reduces gradients only in the call for the last
micro-batch. That call therefore gets a function of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist_attributes import SCOPE
from distir.program import (
    functions,
    made_with,
    reachable_functions,
    return_op,
    scope_of,
    unique_name,
)
from distir.program.functions import erase_unreachable
from distir.transforms.overlap.kinds import REDUCTIONS, kind_of, write_kind
from distir.transforms.repeats.naming import specialise


@dataclass(frozen=True)
class _Reduction:
    """
    A reducing collective without its operand. `kind` is the class of the op, `axes` are
    its mesh axes, and `type` is the type of its result. `purpose` is its kind of
    communication, such as `dp`.
    """

    kind: type[CollectiveOp]
    axes: ArrayAttr[StringAttr]
    type: Attribute
    purpose: str

    def on(self, value: SSAValue, like: Operation) -> CollectiveOp:
        new = self.kind(value, [a.data for a in self.axes.data], self.type)
        write_kind(new, self.purpose)
        if SCOPE in like.attributes:
            new.attributes[SCOPE] = like.attributes[SCOPE]
        return new


_Sunk = tuple[tuple[int, tuple[_Reduction, ...]], ...]
"""
For each reduced result of a function, its index and the reductions to apply, in order.
"""


def sink_reductions(module: ModuleOp, kinds: Collection[str]) -> None:
    """
    Moves reductions of a call's results into the called function, in the whole program.
    Only reductions whose kind of communication is in `kinds` are moved. Callers are
    processed first.
    """
    pending = list(reversed(reachable_functions(module)))
    while pending:
        caller = pending.pop(0)
        wanted: dict[str, dict[_Sunk, list[CallOp]]] = {}
        for op in caller.body.block.ops:
            if isinstance(op, CallOp):
                callee = functions(module)[op.callee.string_value()]
                found = _reductions(op, callee, kinds)
                by_reductions = wanted.setdefault(op.callee.string_value(), {})
                by_reductions.setdefault(found, []).append(op)
        for name, by_reductions in wanted.items():
            for sunk, calls in by_reductions.items():
                if sunk:
                    function = _with_reductions(module, name, sunk)
                    pending.append(function)
                    for call in calls:
                        _redirect(call, function, sunk)
    erase_unreachable(module)


def _reductions(call: CallOp, callee: FuncOp, kinds: Collection[str]) -> _Sunk:
    """
    Returns the reductions of a call's results that can move into the function `callee`.
    The function must compute the result itself and return it only once.
    """
    returned = return_op(callee).operands
    found: list[tuple[int, tuple[_Reduction, ...]]] = []
    for i, result in enumerate(call.results):
        chain: list[_Reduction] = []
        last: SSAValue = result
        while (user := _only_reduction(last)) is not None and kind_of(user) in kinds:
            purpose = kind_of(user)
            chain.append(_Reduction(type(user), user.axes, user.result.type, purpose))
            last = user.result
        is_computed = isinstance(returned[i].owner, Operation)
        if chain and is_computed and list(returned).count(returned[i]) == 1:
            found.append((i, tuple(chain)))
    return tuple(found)


def _only_reduction(value: SSAValue) -> CollectiveOp | None:
    """Returns the reduction of a value if it is the value's only use, else None."""
    users = [use.operation for use in value.uses]
    if len(users) == 1 and isinstance(users[0], REDUCTIONS):
        return users[0]
    return None


def _with_reductions(module: ModuleOp, name: str, sunk: _Sunk) -> FuncOp:
    """
    Adds to the module a copy of the function `name` that reduces results, and returns
    it. `sunk` has the results and their reductions.
    """
    original = functions(module)[name]
    function = original.clone()
    function.properties["sym_name"] = StringAttr(
        unique_name(module, f"{name}_and_reduce")
    )
    Rewriter.insert_op(function, InsertPoint.after(original))
    end = return_op(function)
    for i, chain in sunk:
        value = end.operands[i]
        for reduction in chain:
            like = value.owner
            assert isinstance(like, Operation)
            new = reduction.on(value, like)
            new.result.name_hint = value.name_hint
            Rewriter.insert_op(new, InsertPoint.after(like))
            value = new.result
        end.operands[i] = value
    function.update_function_type()
    return function


def _redirect(call: CallOp, function: FuncOp, sunk: _Sunk) -> None:
    """
    Makes `call` call `function`, which reduces results, and removes these reductions
    after it.
    """
    outputs = function.function_type.outputs.data
    new = made_with(call, call.operands, outputs)
    new.properties["callee"] = SymbolRefAttr(function.sym_name)
    Rewriter.insert_op(new, InsertPoint.before(call))
    reduced = dict(sunk)
    for i, (old, result) in enumerate(zip(call.results, new.results, strict=True)):
        result.name_hint = old.name_hint
        last: SSAValue = old
        chain: list[CollectiveOp] = []
        for _ in reduced.get(i, ()):
            user = _only_reduction(last)
            assert user is not None
            chain.append(user)
            last = user.result
        last.replace_all_uses_with(result)
        for op in reversed(chain):
            Rewriter.erase_op(op)
    Rewriter.erase_op(call)


def hoist_gathers(module: ModuleOp) -> bool:
    """
    Moves gathers of a function's arguments to before its calls. There a gather can
    start before the call: the parameters of the next layer arrive while a layer is
    computed. Only functions without calls are changed. From a function with calls, such
    as a pipeline stage, all parameters would be gathered at once. Returns whether there
    are such gathers.
    """
    found = False
    *called, _ = reachable_functions(module)
    calls: dict[str, list[CallOp]] = {}
    for op in module.walk():
        if isinstance(op, CallOp):
            calls.setdefault(op.callee.string_value(), []).append(op)
    for function in called:
        if not any(isinstance(op, CallOp) for op in function.body.block.ops):
            for gather in _gathered_arguments(function):
                _hoist(function, gather, calls.get(function.sym_name.data, []))
                found = True
    return found


def _gathered_arguments(function: FuncOp) -> list[AllGatherOp]:
    """
    Returns the gathers of parameters in a function that can move to its callers. Their
    operand is an argument without other uses.
    """
    return [
        op
        for op in function.body.block.ops
        if isinstance(op, AllGatherOp)
        and kind_of(op) == "params"
        and isinstance(op.source, BlockArgument)
        and len(list(op.source.uses)) == 1
    ]


def _hoist(function: FuncOp, gather: AllGatherOp, calls: list[CallOp]) -> None:
    argument = gather.source
    assert isinstance(argument, BlockArgument)
    index = argument.index
    for call in calls:
        given = call.operands[index]
        new = made_with(gather, [given], [gather.result.type])
        if scope_of(gather):
            scope = specialise(scope_of(gather), scope_of(call))
            new.attributes[SCOPE] = SCOPE.attr(scope)
        new.results[0].name_hint = given.name_hint
        Rewriter.insert_op(new, InsertPoint.before(call))
        call.operands[index] = new.results[0]
    argument = Rewriter.replace_value_with_new_type(argument, gather.result.type)
    gather.result.replace_all_uses_with(argument)
    Rewriter.erase_op(gather)
    function.update_function_type()
