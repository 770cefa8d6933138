"""The gradient of soft and hard shrinkage."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import irdl_op_definition, prop_def

from distir.dialects.train_ops.activation import ActivationGradOp
from distir.dialects.train_ops.base import F32


@irdl_op_definition
class ShrinkGradOp(ActivationGradOp):
    """
    The gradient of y = shrink(x), which is 0 between -lambd and lambd and x plus or minus a
    number elsewhere:

        dx = dy where |x| > lambd, else 0
    """

    name = "train.shrink_grad"
    TORCH: ClassVar[str] = "torch.ops.aten.hardshrink_backward({*}, {lambd})"

    lambd = prop_def(F32)


OPS = [ShrinkGradOp]
