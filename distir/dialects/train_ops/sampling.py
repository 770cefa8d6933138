"""Gradients of sampling images at the points of a grid."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
)

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
"""How a sample follows from elements around it, and from which ones outside of an image."""


class GridSampleGradOp(TrainOp):
    """
    Base of the gradients of `onnx.GridSample`, y = sample(x, grid): `x` is `[N, C, *space]`,
    `grid` `[N, *points, n]` with n coordinates between -1 and 1, the last dimension of space
    first, and `y` is `[N, C, *points]`. `align_corners`: whether -1 and 1 are the centres of
    the elements at the edges, instead of their outer sides.
    """

    COST_CLASS: ClassVar[str] = "gather"

    mode = prop_def(StringAttr)
    padding_mode = prop_def(StringAttr)
    align_corners = opt_prop_def(UnitAttr)

    def check(self, dy: SSAValue, x: SSAValue, grid: SSAValue) -> None:
        """Raises VerifyException unless shapes and attributes fit."""
        sizes, points = shape_of(x), shape_of(grid)
        count = len(sizes) - 2
        if count not in (2, 3) or len(points) != len(sizes) or points[-1] != count:
            raise VerifyException(
                f"{self.name}: a grid of shape {list(points)} has no points of an image "
                f"of shape {list(sizes)}"
            )
        for value, known in (
            (self.mode.data, MODES[: 3 if count == 2 else 2]),
            (self.padding_mode.data, PADDINGS),
        ):
            if value not in known:
                raise VerifyException(
                    f"{self.name}: {value!r} is none of {', '.join(known)}"
                )
        check_float(self, "dy", dy)
        check_element_type(self, "grid", grid, element_type(dy))
        check_element_type(self, "x", x, element_type(dy))
        check_shape(self, "grid", grid, (sizes[0], *points[1:]))
        check_shape(self, "dy", dy, (*sizes[:2], *points[1:-1]))


@irdl_op_definition
class GridSampleGradInputOp(GridSampleGradOp):
    """The gradient with respect to `x`, whose type is given: sums over the samples."""

    name = "train.grid_sample_grad_input"
    FACTORS: ClassVar[str] = "[n, c, *p], [n, *p, ?] -> [n, c, *s] keep s linear 0"

    dy = operand_def(TensorType)
    grid = operand_def(TensorType)
    dx = result_def(TensorType)

    def verify_(self) -> None:
        self.check(self.dy, self.dx, self.grid)
        super().verify_()


@irdl_op_definition
class GridSampleGradGridOp(GridSampleGradOp):
    """The gradient with respect to the grid."""

    name = "train.grid_sample_grad_grid"
    FACTORS: ClassVar[str] = (
        "[n, c, *p], [n, c, *s], [n, *p, ?] -> [n, *p, ?] keep s linear 0"
    )

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    grid = operand_def(TensorType)
    dgrid = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dgrid": like("grid")}

    def verify_(self) -> None:
        self.check(self.dy, self.x, self.grid)
        super().verify_()


OPS = [GridSampleGradInputOp, GridSampleGradGridOp]
