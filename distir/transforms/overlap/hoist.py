"""
Moves gathers of arguments out of functions, in front of their calls.

There they can start before the call: while one layer is computed, the parameters of the
next one arrive. Only functions that call no others (layers) are changed. From larger ones,
such as the stages of a pipeline, all of their parameters would be gathered at once.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist_attributes import SCOPE
from distir.program import made_with, reachable_functions, scope_of
from distir.transforms.overlap.kinds import kind_of
from distir.transforms.repeats.naming import specialise


def hoist_gathers(module: ModuleOp) -> bool:
    """
    Moves gathers of arguments from functions without calls to their callers; returns
    whether there were any.
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
    Returns the gathers of parameters in a function whose operand is an argument without
    other uses.
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
