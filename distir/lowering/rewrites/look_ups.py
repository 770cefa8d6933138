"""Adds the gradient of look-ups to another gradient, as of tied embeddings."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    result_def,
)

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.train_ops.indexing import GatherGradOp, adds_by_row
from distir.lowering.emitter import Call, torch_emitter
from distir.lowering.rewrites.sharing import IN_PLACE
from distir.lowering.rewrites.torch_call import supersede
from distir.transforms.patterns.match import used_once


@irdl_op_definition
class AddLookUpsOp(IRDLOperation):
    """
    `base` with each slice of `dy` added to the row that its index names. Like `torch.call`,
    it is only written in memory, by this file.
    """

    name = "torch.add_look_ups"

    base = operand_def()
    dy = operand_def()
    indices = operand_def()
    sum = result_def()

    def __init__(self, base: SSAValue, look_ups: GatherGradOp):
        super().__init__(
            operands=[base, look_ups.dy, look_ups.indices], result_types=[base.type]
        )


@torch_emitter("torch.add_look_ups")
def add_look_ups(call: Call) -> str:
    arguments = call.operands()
    if IN_PLACE in call.op.attributes:
        arguments.append("in_place=True")
    return f"{call.helper('indexing')}.add_look_ups({', '.join(arguments)})"


def fuse_look_ups(op: OnnxOp) -> bool:
    """
    Fuses the gradient of look-ups of rows and the Add right behind it; returns whether it
    did.
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
