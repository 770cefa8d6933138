"""The sequential reading of a distributed program: layouts and communication left out."""

from __future__ import annotations

from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.rewriter import Rewriter

from distir.dialects import dist
from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import PermuteOp
from distir.dialects.device import MeshOp
from distir.dialects.dist import layout_of


def is_communication(op: Operation) -> bool:
    """Whether an op only changes where a value lives; a ring shift changes the value."""
    return isinstance(
        op, CollectiveOp | dist.SendOp | dist.ReshardOp
    ) and not isinstance(op, PermuteOp)


def plain(type_: Attribute) -> Attribute:
    """A type without its layout."""
    if layout_of(type_) is None or not isinstance(type_, TensorType):
        return type_
    return TensorType(type_.element_type, type_.shape.data)


def erased(module: ModuleOp) -> ModuleOp:
    """A new module that computes on whole values what the distributed one does."""
    clone = module.clone()
    for op in list(clone.body.block.ops):
        if isinstance(op, MeshOp):
            Rewriter.erase_op(op)
        elif isinstance(op, FuncOp):
            _erase(op)
    return clone


def _erase(function: FuncOp) -> None:
    for op in list(function.body.block.ops):
        if is_communication(op):
            op.results[0].replace_all_uses_with(op.operands[0])
            Rewriter.erase_op(op)
            continue
        for result in list(op.results):
            Rewriter.replace_value_with_new_type(result, plain(result.type))
    for argument in list(function.body.block.args):
        Rewriter.replace_value_with_new_type(argument, plain(argument.type))
    function.properties["function_type"] = FunctionType.from_lists(
        [plain(t) for t in function.function_type.inputs],
        [plain(t) for t in function.function_type.outputs],
    )
