"""Facts about masks that may depend on inputs: whether they are finite or learned."""

from __future__ import annotations

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, BlockArgument, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import SAME_VALUES, SELECTIONS, SUMS
from distir.program import argument_roles, calls_of
from distir.transforms.patterns.match import element, is_finite_constant

_FINITE_IF_OPERANDS_ARE = (
    SAME_VALUES | SELECTIONS | SUMS | {"onnx.Mul", "onnx.Neg", "onnx.Where"}
)


def is_finite(value: SSAValue, depth: int = 64) -> bool:
    """
    Whether no element is minus infinity, as far as the ops that computed it tell:
    constants, integers and booleans, and values computed from them. Follows arguments into
    callers.
    """
    if is_finite_constant(value):
        return True
    kind = str(element(value))
    if kind.startswith(("i", "ui", "si")):
        return True
    if depth == 0:
        return False
    owner = value.owner
    if isinstance(owner, Block):
        given = _given(value)
        return bool(given) and all(is_finite(v, depth - 1) for v in given)
    if isinstance(owner, CollectiveOp) and owner.reduction is None:
        return is_finite(owner.source, depth - 1)
    if not isinstance(owner, OnnxOp):
        return False
    if owner.name not in _FINITE_IF_OPERANDS_ARE:
        return False
    return all(is_finite(v, depth - 1) for v in owner.operands)


def is_learned(value: SSAValue) -> bool:
    """Whether a value depends on a parameter. Follows arguments into callers."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        owner = current.owner
        if isinstance(owner, Block):
            function = owner.parent_op()
            if isinstance(function, FuncOp) and current in _parameters(function):
                return True
            sources = _given(current)
        elif isinstance(owner, CallOp):
            return True  # not followed
        else:
            sources = list(owner.operands)
        pending += [v for v in sources if v not in seen]
        seen.update(sources)
    return False


def _parameters(function: FuncOp) -> list[SSAValue]:
    roles = argument_roles(function)
    return [a for a, r in zip(function.args, roles, strict=True) if r == "parameter"]


def _given(argument: SSAValue) -> list[SSAValue]:
    """Returns the operands that calls pass for an argument of a function."""
    assert isinstance(argument, BlockArgument)
    function = argument.owner.parent_op()
    if not isinstance(function, FuncOp):
        return []
    return [call.operands[argument.index] for call in calls_of(function)]


def only_source(value: SSAValue) -> SSAValue | None:
    """
    Returns the value that all calls pass, if the given one is an argument of a function;
    else the value itself.
    """
    while isinstance(value, BlockArgument) and (given := set(_given(value))):
        if len(given) > 1:
            return None
        (value,) = given
    return value
