"""
Moves communication into called functions and out of them. Reductions of a call's
results move into the function, where they can start as soon as their operand is
computed. Gathers of a function's arguments move in front of the call. The backward
function of a pipeline stage reduces gradients only in the call for the last
micro-batch. That call therefore gets a separate function.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from distir.transforms.overlap.kinds import (
    REDUCTIONS,
    chain_from_argument,
    kind_of,
    write_kind,
)
from distir.transforms.repeats.naming import specialise


@dataclass(frozen=True)
class _Reduction:
    """
    A reducing collective, described without its operand. `kind` is the class of the op,
    `axes` are the mesh axes, and `type` is the type of the result. `purpose` is the
    kind of communication, such as `dp`.
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


_Sunk = tuple[tuple[int, _Reduction], ...]
"""
For each reduced result of a function, its index and the reduction to apply. If it is
reduced twice, as with hybrid sharding, the second reduction stays with the caller, where
it can start when the first is done, without a device that waits for that.
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
    Returns the reductions of a call's results that can move into `callee`, the called
    function. The function must compute the reduced result itself and return it only
    once.
    """
    returned = return_op(callee).operands
    found: list[tuple[int, _Reduction]] = []
    for i, result in enumerate(call.results):
        user = _only_reduction(result)
        if user is None or kind_of(user) not in kinds:
            continue
        is_computed = isinstance(returned[i].owner, Operation)
        if is_computed and list(returned).count(returned[i]) == 1:
            purpose = kind_of(user)
            reduction = _Reduction(type(user), user.axes, user.result.type, purpose)
            found.append((i, reduction))
    return tuple(found)


def _only_reduction(value: SSAValue) -> CollectiveOp | None:
    """
    Returns the reduction of a value if the reduction is the value's only use, else
    None.
    """
    users = [use.operation for use in value.uses]
    if len(users) == 1 and isinstance(users[0], REDUCTIONS):
        return users[0]
    return None


def _with_reductions(module: ModuleOp, name: str, sunk: _Sunk) -> FuncOp:
    """
    Adds to the module a copy of the function `name` that also reduces its results, and
    returns the copy. `sunk` has the results to reduce, each with its reductions.
    """
    original = functions(module)[name]
    function = original.clone()
    function.properties["sym_name"] = StringAttr(
        unique_name(module, f"{name}_and_reduce")
    )
    Rewriter.insert_op(function, InsertPoint.after(original))
    end = return_op(function)
    for i, reduction in sunk:
        value = end.operands[i]
        like = value.owner
        assert isinstance(like, Operation)
        new = reduction.on(value, like)
        new.result.name_hint = value.name_hint
        Rewriter.insert_op(new, InsertPoint.after(like))
        end.operands[i] = new.result
    function.update_function_type()
    return function


def _redirect(call: CallOp, function: FuncOp, sunk: _Sunk) -> None:
    """
    Makes `call` call `function`, which reduces its results, and removes these
    reductions from the ops after the call.
    """
    outputs = function.function_type.outputs.data
    new = made_with(call, call.operands, outputs)
    new.properties["callee"] = SymbolRefAttr(function.sym_name)
    Rewriter.insert_op(new, InsertPoint.before(call))
    reduced = dict(sunk)
    for i, (old, result) in enumerate(zip(call.results, new.results, strict=True)):
        result.name_hint = old.name_hint
        if i not in reduced:
            old.replace_all_uses_with(result)
            continue
        user = _only_reduction(old)
        assert user is not None
        user.result.replace_all_uses_with(result)
        Rewriter.erase_op(user)
    Rewriter.erase_op(call)


def hoist_gathers(
    module: ModuleOp,
    axes: Collection[str] | None = None,
    apart_from: Collection[str] = (),
) -> bool:
    """
    Moves gathers of a function's arguments in front of its calls, so that a gather can
    start before the call: the next layer's parameters arrive during the computation of
    a layer. If `axes` is given, only gathers over these mesh axes move. Functions whose
    names are in `apart_from` keep their gathers, and so do functions with calls: from
    such a function, for example a pipeline stage, all parameters would be gathered at
    once. Returns whether any gather was moved.
    """
    found = False
    *called, _ = reachable_functions(module)
    calls: dict[str, list[CallOp]] = {}
    for op in module.walk():
        if isinstance(op, CallOp):
            calls.setdefault(op.callee.string_value(), []).append(op)
    for function in called:
        if function.sym_name.data in apart_from:
            continue
        if not any(isinstance(op, CallOp) for op in function.body.block.ops):
            for gather in _gathers_of_parameters(function, axes):
                chain = _chain_to_hoist(gather)
                if chain:
                    _hoist(function, chain, calls.get(function.sym_name.data, []))
                    found = True
    return found


def _gathers_of_parameters(
    function: FuncOp, axes: Collection[str] | None = None
) -> list[AllGatherOp]:
    """
    Returns the gathers of parameters in a function, in order. If `axes` is given, only
    gathers over mesh axes in `axes` are returned.
    """
    return [
        op
        for op in function.body.block.ops
        if isinstance(op, AllGatherOp)
        and kind_of(op) == "params"
        and (axes is None or all(axis.data in axes for axis in op.axes))
    ]


def _chain_to_hoist(gather: AllGatherOp) -> list[Operation]:
    """
    Returns the ops that lead from an argument to its gather, such as a transposition or
    a cast, if these ops can move to the function's callers. The argument must have no
    other use. Returns an empty list if the ops cannot move.
    """
    chain = chain_from_argument(gather)
    if not chain or len(list(chain[0].operands[0].uses)) > 1:
        return []
    return chain


def _hoist(function: FuncOp, chain: list[Operation], calls: list[CallOp]) -> None:
    """Moves the ops of `chain`, which gather an argument, in front of the calls."""
    argument, gathered = chain[0].operands[0], chain[-1].results[0]
    assert isinstance(argument, BlockArgument)
    index = argument.index
    for call in calls:
        call.operands[index] = copied_before(call, chain, call.operands[index])
    argument = Rewriter.replace_value_with_new_type(argument, gathered.type)
    gathered.replace_all_uses_with(argument)
    for op in reversed(chain):
        Rewriter.erase_op(op)
    function.update_function_type()


def copied_before(
    call: CallOp, chain: Sequence[Operation], value: SSAValue
) -> SSAValue:
    """
    Copies ops of the function that `call` calls in front of the call. The ops of
    `chain` have one operand and one result each, and each uses the one before it; the
    first copy uses `value`. Returns the result of the last copy.
    """
    hint = value.name_hint
    for op in chain:
        new = made_with(op, [value], [op.results[0].type])
        if scope_of(op):
            scope = specialise(scope_of(op), scope_of(call))
            new.attributes[SCOPE] = SCOPE.attr(scope)
        new.results[0].name_hint = hint
        Rewriter.insert_op(new, InsertPoint.before(call))
        value = new.results[0]
    return value
