"""The gradient of resizing."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    DenseArrayBase,
    Float64Type,
    StringAttr,
    TensorType,
    UnitAttr,
    f64,
)
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import F32, TrainOp
from distir.dialects.train_ops.checks import check_element_type, check_float


@irdl_op_definition
class ResizeGradOp(TrainOp):
    """
    The gradient of `onnx.Resize` with respect to its input: from `dy`, which is like the
    result, to `dx`, which is like the input. Each element of `dy` is added to the elements
    that were interpolated, times their weights.

    `scales` has the scale of every dimension (1 for those that keep their size); the other
    attributes are those of `onnx.Resize`.
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
        """The dimensions that are interpolated along."""
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
            # Where a size was asked for, its quotient may be a little less.
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


OPS = [ResizeGradOp]
