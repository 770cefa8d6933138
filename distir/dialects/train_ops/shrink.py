"""The gradient of soft and hard shrinkage."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, FloatAttr, TensorType, f32
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import check_like


@irdl_op_definition
class ShrinkGradOp(TrainOp):
    """
    The gradient of y = shrink(x), which is 0 between -lambd and lambd and x plus or minus a
    number elsewhere:

        dx = dy where |x| > lambd, else 0

    `dy`, `x` and `dx` are of one type.
    """

    name = "train.shrink_grad"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    lambd = prop_def(FloatAttr[Float32Type])
    dx = result_def(TensorType)

    def __init__(self, dy: SSAValue, x: SSAValue, lambd: float):
        super().__init__(
            operands=[dy, x],
            properties={"lambd": FloatAttr(lambd, f32)},
            result_types=[x.type],
        )

    def verify_(self) -> None:
        check_like(self, "dy", self.dy, self.x)
        check_like(self, "dx", self.dx, self.x)


OPS = [ShrinkGradOp]
