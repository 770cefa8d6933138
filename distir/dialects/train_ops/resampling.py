"""Gradients of resizing images, and of sampling images at the points of a grid."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import (
    DenseArrayBase,
    Float64Type,
    StringAttr,
    TensorType,
    UnitAttr,
    f64,
)
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
from distir.dialects.train_ops.base import F32, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
)


@irdl_op_definition
class ResizeGradOp(TrainOp):
    """
    The gradient of `onnx.Resize` with respect to its input. The op takes `dy`, the
    gradient of the result, and returns `dx`, the gradient of the input. An input
    element gets the sum of the elements of `dy` whose values were interpolated from
    this input element, times the weights of the interpolation.

    `scales` has the scale of every dimension (1 for dimensions that keep their size).
    All other attributes have the meaning that `onnx.Resize` gives them.
    """

    name = "train.resize_grad"

    dy = operand_def(TensorType)
    scales = prop_def(DenseArrayBase.constr(f64))
    mode = prop_def(StringAttr)
    coordinate_transformation_mode = prop_def(StringAttr)
    nearest_mode = prop_def(StringAttr)
    cubic_coeff_a = prop_def(F32)
    antialias = opt_prop_def(UnitAttr)
    exclude_outside = opt_prop_def(UnitAttr)
    dx = result_def(TensorType)

    @property
    def factors(self) -> tuple[float, ...]:
        """The scale of every dimension."""
        scales: DenseArrayBase[Float64Type] = self.scales
        return tuple(float(v) for v in scales.get_values())

    @property
    def resized(self) -> list[int]:
        """The dimensions along which the op interpolates."""
        sizes = zip(shape_of(self.dx), shape_of(self.dy), self.factors, strict=True)
        return [i for i, (a, b, s) in enumerate(sizes) if a != b or s != 1]

    def verify_(self) -> None:
        check_float(self, "dy", self.dy)
        check_element_type(self, "dx", self.dx, element_type(self.dy))
        before, after = shape_of(self.dx), shape_of(self.dy)
        if not len(before) == len(after) == len(self.factors):
            raise VerifyException(
                f"{self.name}: dx has {len(before)} dimensions and dy {len(after)}, and "
                f"there are {len(self.factors)} scales; they must be as many"
            )
        for dim, (size, count, scale) in enumerate(
            zip(before, after, self.factors, strict=True)
        ):
            # If a size was requested, the scale computed from it may be too small.
            if scale <= 0 or abs(size * scale - count) >= 1:
                raise VerifyException(
                    f"{self.name}: dimension {dim} has {size} elements in dx, which a "
                    f"scale of {scale} does not make the {count} of dy"
                )
        if self.mode.data not in ("nearest", "linear", "cubic"):
            raise VerifyException(
                f'{self.name}: mode is "{self.mode.data}", expected "nearest", "linear" '
                f'or "cubic"'
            )


MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
"""
The interpolation modes of samples (`MODES`), and the padding modes for samples outside
of the image (`PADDINGS`).
"""


class GridSampleGradOp(TrainOp):
    """
    Base of the gradients of `onnx.GridSample`, y = sample(x, grid). `x` is `[N, C,
    *space]` and `y` is `[N, C, *points]`. `grid` is `[N, *points, n]`, with n
    coordinates between -1 and 1, the last spatial dimension first. With
    `align_corners`, -1 and 1 are the centres of the elements at the edges, else their
    outer sides.
    """

    COST_CLASS: ClassVar[str] = "gather"

    mode = prop_def(StringAttr)
    padding_mode = prop_def(StringAttr)
    align_corners = opt_prop_def(UnitAttr)

    def check(self, dy: SSAValue, x: SSAValue, grid: SSAValue) -> None:
        """
        Raises VerifyException unless shapes, element types and attributes fit each
        other.
        """
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
    """
    The gradient of `onnx.GridSample` with respect to `x`, as sums over the samples. The
    type of the result gives the shape of `x`.
    """

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
    """The gradient of `onnx.GridSample` with respect to the grid."""

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


OPS = [ResizeGradOp, GridSampleGradInputOp, GridSampleGradGridOp]
