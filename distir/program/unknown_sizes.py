"""Finds the origin of an unknown size, and gives users advice."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, TensorType, UnrankedTensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from distir.dialects.onnx_ops.values import OptionalType, SequenceType
from distir.program import (
    argument_names,
    calls_of,
    describe,
    entry_function,
    functions,
    return_op,
)


def is_unknown(type_: Attribute) -> bool:
    """
    Whether a tensor type lacks a size. For a sequence or optional type, the element
    type decides.
    """
    if isinstance(type_, SequenceType | OptionalType):
        return is_unknown(type_.element)
    if isinstance(type_, TensorType):
        return min(type_.get_shape(), default=0) < 0
    return isinstance(type_, UnrankedTensorType)


def origin_of_unknown(value: SSAValue) -> str:
    """
    Returns the end of an error message about a value of unknown size: the origin of the
    size, and the remedy. The origin is an argument of the program, or an op whose
    result's size depends on data.
    """
    pending, seen = [value], set[SSAValue]()
    first: Operation | None = None
    while pending:
        found = pending.pop()
        if found in seen:
            continue
        seen.add(found)
        if isinstance(found, BlockArgument):
            function = found.block.parent_op()
            assert isinstance(function, FuncOp)
            if _is_entry(function):
                name = argument_names(function)[found.index]
                return (
                    f"argument {name!r} has dimensions of unknown size; give them at "
                    f"import, and run fold-shapes"
                )
            pending += [c.operands[found.index] for c in calls_of(function)]
            continue
        op = found.owner
        assert isinstance(op, Operation)
        callee = _callee(op)
        if callee is not None:
            pending.append(return_op(callee).operands[op.results.index(found)])
        elif unknown := [v for v in op.operands if is_unknown(v.type)]:
            pending += unknown
        else:
            first = first or op
    if first is None:
        return "give the sizes at import, and run fold-shapes"
    return (
        f"its sizes depend on what {describe(first)} is given when the program runs; run "
        f"fold-shapes if they follow from shapes and constants, otherwise change the model "
        f"so that they are the same for all data: masks instead of selections; of experts, "
        f"compute all for each token and weigh them by a one-hot of the router's choice, or "
        f"use those of transformers, which are imported whole"
    )


def _is_entry(function: FuncOp) -> bool:
    module = function.parent_op()
    return not isinstance(module, ModuleOp) or entry_function(module) is function


def _callee(op: Operation) -> FuncOp | None:
    """Returns the function that an op calls, or None if the op is not a call."""
    if not isinstance(op, CallOp):
        return None
    parent: Operation | None = op
    while parent is not None and not isinstance(parent, ModuleOp):
        parent = parent.parent_op()
    return None if parent is None else functions(parent)[op.callee.string_value()]
