"""
Fuses gradients: both gradients of a convolution, and the gradient of look-ups with its
addition to another gradient, as for tied embeddings.
"""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.torch import AddLookUpsOp, ConvGradsOp
from distir.dialects.train_ops.convolution import ConvGradInputOp, ConvGradWeightOp
from distir.dialects.train_ops.indexing import GatherGradOp, adds_by_row
from distir.lowering.rewrites.products import supersede
from distir.transforms.patterns.match import used_once


def fuse_convolution_gradients(function: FuncOp) -> None:
    """
    Replaces the gradients of a convolution's input and of its weight by one op. The
    operands of both gradients must be computed before the first of these two ops.
    """
    block = function.body.block
    for op in list(block.ops):
        if isinstance(op, ConvGradWeightOp):
            other = _of_input(op)
            if other is not None:
                _fuse(block, op, other)


def _of_input(op: ConvGradWeightOp) -> ConvGradInputOp | None:
    """
    Returns the op that computes the gradient of the same convolution's input, or None
    if there is no such op.
    """
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
    """Whether `value` is defined before `op` in the same block."""
    owner = value.owner
    return not isinstance(owner, Operation) or owner.is_before_in_block(op)


def fuse_look_ups(op: OnnxOp) -> bool:
    """
    Fuses an Add with the gradient of row look-ups that is computed right before it.
    Returns whether it was fused.
    """
    look_ups = op.prev_op
    if op.name != "onnx.Add" or not isinstance(look_ups, GatherGradOp):
        return False
    others = [v for v in op.operands if v is not look_ups.ddata]
    if len(others) != 1 or not adds_by_row(look_ups) or not used_once(look_ups.ddata):
        return False
    (base,) = others
    if base.type != op.results[0].type:
        return False
    supersede(op, AddLookUpsOp(base, look_ups))
    return True
