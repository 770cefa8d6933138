"""Computes both gradients of a convolution by one call."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def

from distir.dialects.train_ops.base import Types, like
from distir.dialects.train_ops.convolution import (
    ConvGradInputOp,
    ConvGradOp,
    ConvGradWeightOp,
)


@irdl_op_definition
class ConvGradsOp(ConvGradOp):
    """
    An op with the results of `train.conv_grad_input` and `train.conv_grad_weight`. Like
    `torch.call`, it is only written by fusions, in memory, and belongs to no dialect.
    """

    name = "torch.conv_grad"

    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    dy = operand_def(TensorType)
    dx = result_def(TensorType)
    dweight = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dx": like("x"), "dweight": like("weight")}


def fuse_convolution_gradients(function: FuncOp) -> None:
    """
    Replaces the gradients of a convolution's input and of its weights by one op, where the
    operands of both are computed before the first of them.
    """
    block = function.body.block
    for op in list(block.ops):
        if isinstance(op, ConvGradWeightOp):
            other = _of_input(op)
            if other is not None:
                _fuse(block, op, other)


def _of_input(op: ConvGradWeightOp) -> ConvGradInputOp | None:
    """Returns the op that computes the gradient of the same convolution's input."""
    for use in op.dy.uses:
        other = use.operation
        if (
            isinstance(other, ConvGradInputOp)
            and use.index == 0
            and other.properties == op.properties
            and other.dx.type == op.x.type
            and other.weight.type == op.dweight.type
            and other.parent_block() is op.parent_block()
        ):
            return other
    return None


def _fuse(block: Block, of_weight: ConvGradWeightOp, of_input: ConvGradInputOp) -> None:
    first, second = of_weight, of_input
    if second.is_before_in_block(first):
        first, second = second, first
    if not all(_is_there(value, first) for value in second.operands):
        return
    fused = ConvGradsOp(
        *(of_weight.x, of_input.weight, of_weight.dy), **of_weight.properties
    )
    fused.attributes.update(of_weight.attributes)
    block.insert_op_before(fused, first)
    for old, new in ((of_input.dx, fused.dx), (of_weight.dweight, fused.dweight)):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    block.erase_op(first)
    block.erase_op(second)


def _is_there(value: SSAValue, op: Operation) -> bool:
    """Whether a value is defined before an op of its block."""
    owner = value.owner
    return not isinstance(owner, Operation) or owner.is_before_in_block(op)
