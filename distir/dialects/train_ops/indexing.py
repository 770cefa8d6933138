"""Gradients of look-ups."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
)

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_integers,
    check_shape,
    checked_axis,
)


@irdl_op_definition
class GatherGradOp(TrainOp):
    """
    The gradient of `onnx.Gather` along `axis` with respect to its data: zeros of the shape
    of `ddata`, to which each slice of `dy` is added at the position of its index. `dy` is
    `[...before, ...indices, ...after]`, `ddata` is `[...before, rows, ...after]`; indices
    are in `-rows .. rows-1`, negative ones count from the end. The order of additions is
    fixed.

    With `data`, whose values are not used, the rows are split as those of `data`.
    """

    name = "train.gather_grad"

    dy = operand_def(TensorType)
    indices = operand_def(TensorType)
    data = opt_operand_def(TensorType)
    axis = prop_def(I64)
    ddata = result_def(TensorType)

    TYPES: ClassVar[Types] = {"data": like("ddata")}

    assembly_format = (
        "$dy `,` $indices (`like` $data^)? attr-dict `:` "
        "functional-type(operands, results)"
    )

    @property
    def dimension(self) -> int:
        """The index of the looked-up dimension."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.ddata)))

    def verify_(self) -> None:
        sizes, axis = shape_of(self.ddata), self.dimension
        check_float(self, "dy", self.dy)
        check_integers(self, "indices", self.indices)
        expected = (*sizes[:axis], *shape_of(self.indices), *sizes[axis + 1 :])
        check_shape(self, "dy", self.dy, expected)
        check_element_type(self, "ddata", self.ddata, element_type(self.dy))
        super().verify_()


OPS = [GatherGradOp]
