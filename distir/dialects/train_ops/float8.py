"""
Matrix products in 8-bit floats, and the scales that convert tensors to 8-bit floats.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, TensorType, f32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx_ops.values import ElementType
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, TrainOp
from distir.dialects.train_ops.block_floats import BLOCK_RECIPES, QuantizeBlocksOp
from distir.dialects.train_ops.checks import (
    check_choice,
    check_element_type,
    check_float,
    check_shape,
    check_type,
    checked_axis,
    product_shape,
)

FORMATS = {
    "e4m3": (ElementType(StringAttr("float8e4m3fn")), 448.0),
    "e5m2": (ElementType(StringAttr("float8e5m2")), 57344.0),
}
"""
The 8-bit float formats for products, by name: the element type and its largest value.
"""

RANGES = {
    **{name: largest for name, (_, largest) in FORMATS.items()},
    **{
        name: recipe.largest * recipe.largest_scale
        for name, recipe in BLOCK_RECIPES.items()
        if recipe.has_tensor_scale
    },
}
"""
The largest value that each format can hold, by name. With blocks, this is the product
of the largest element and the largest scale.
"""

SCALINGS = ("tensor", "row", "row-gw-hp")
"""
The ways to choose scales. "tensor": one scale per tensor. "row": one per row of the
first factor and per column of the second. "row-gw-hp": like "row", but gradients of
weights are computed in the model's precision.
"""

RECIPES = (*SCALINGS, *BLOCK_RECIPES)
"""The ways to compute products in narrow floats: `SCALINGS` and `BLOCK_RECIPES`."""


def is_float8(type_: Attribute) -> bool:
    """Whether `type_` is one of the element types in `FORMATS`."""
    return any(type_ == known for known, _ in FORMATS.values())


def is_narrow(type_: Attribute) -> bool:
    """Whether products of some recipe in `RECIPES` have factors of type `type_`."""
    return is_float8(type_) or any(
        type_ == recipe.element for recipe in BLOCK_RECIPES.values()
    )


@irdl_op_definition
class Float8LinearOp(TrainOp):
    """
    A matrix product y = a b that is computed in 8-bit floats.

    `a` `[..., m, k]` is multiplied by its scale and rounded to `a_format`, and `b` `[k,
    n]` to `b_format`. `scaling` is one of `SCALINGS`. Operands and result have the
    model's precision. The pass `expand-float8` replaces this op with its parts before
    gradients are taken. Devices cannot split the op itself.
    """

    name = "train.float8_linear"

    a = operand_def(TensorType)
    b = operand_def(TensorType)
    scaling = prop_def(StringAttr)
    a_format = prop_def(StringAttr)
    b_format = prop_def(StringAttr)
    y = result_def(TensorType)

    @property
    def formats(self) -> tuple[str, str]:
        """The names of the formats of `a` and `b`."""
        return self.a_format.data, self.b_format.data

    def verify_(self) -> None:
        check_choice(self, "scaling", self.scaling.data, SCALINGS)
        for name in self.formats:
            check_choice(self, "format", name, FORMATS)
        check_float(self, "a", self.a)
        check_element_type(self, "b", self.b, element_type(self.a))
        shape = product_shape(self, shape_of(self.a), shape_of(self.b))
        check_type(self, "y", self.y, TensorType(element_type(self.a), shape))
        super().verify_()


@irdl_op_definition
class Float8ScaleOp(TrainOp):
    """
    The factor that makes `x` fill the range of a format: the format's largest
    value (`RANGES`) divided by the largest magnitude in `x` (at least 1e-12). Without `axis` the
    result is a scalar. With `axis`, there is one scale per row along `axis`, which then
    has size 1. The scale of a whole tensor is the smallest of the scales of its parts.
    """

    name = "train.float8_scale"
    TORCH: ClassVar[str] = "float8_scale({0}, {op.largest}, {op.dimension})"
    TORCH_MODULE: ClassVar[str] = "float8"

    x = operand_def(TensorType)
    format = prop_def(StringAttr)
    axis = opt_prop_def(I64)
    scale = result_def(TensorType)

    @property
    def dimension(self) -> int | None:
        """The index of `axis`, counted from 0; None for a scale of the whole tensor."""
        if self.axis is None:
            return None
        return checked_axis(self, self.axis.value.data, len(shape_of(self.x)))

    @property
    def largest(self) -> float:
        """The largest value that the format can hold."""
        return RANGES[self.format.data]

    def verify_(self) -> None:
        check_choice(self, "format", self.format.data, RANGES)
        check_float(self, "x", self.x)
        shape, dim = list(shape_of(self.x)), self.dimension
        if dim is None:
            shape = []
        else:
            shape[dim] = 1
        check_type(self, "scale", self.scale, TensorType(f32, shape))
        super().verify_()


@irdl_op_definition
class ToFloat8Op(TrainOp):
    """
    Converts to 8-bit floats: y = x * scale, rounded to the element type of `y`. `scale`
    broadcasts. Numbers out of range become the largest finite value of their sign.
    """

    name = "train.to_float8"
    TORCH: ClassVar[str] = "to_float8({*}, {result:dtype})"
    TORCH_MODULE: ClassVar[str] = "float8"

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    y = result_def(TensorType)

    @property
    def largest(self) -> float:
        """The largest finite value of the result's element type."""
        return next(v for t, v in FORMATS.values() if t == element_type(self.y))

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        check_element_type(self, "scale", self.scale, f32)
        check_shape(self, "y", self.y, shape_of(self.x))
        _check_float8(self, "y", self.y)
        scale, shape = shape_of(self.scale), shape_of(self.x)
        if scale and (
            len(scale) != len(shape)
            or any(n not in (1, m) for n, m in zip(scale, shape, strict=True))
        ):
            raise VerifyException(
                f"{self.name}: scale has shape {list(scale)}, which does not broadcast to "
                f"{list(shape)}"
            )
        super().verify_()


@irdl_op_definition
class Float8ProductOp(TrainOp):
    """
    A matrix product of scaled 8-bit floats: y = (a b) / (scale_a scale_b). `a` is
    `[..., m, k]` and `b` is `[k, n]`; both were multiplied by their scales before.
    Scales are scalars, or one per row of `a` (`[..., m, 1]`) and one per column of `b`
    (`[1, n]`). Sums are accumulated in f32.
    """

    name = "train.float8_product"
    TORCH: ClassVar[str] = "float8_product({*}, {result:dtype})"
    TORCH_MODULE: ClassVar[str] = "float8"

    a = operand_def(TensorType)
    b = operand_def(TensorType)
    scale_a = operand_def(TensorType)
    scale_b = operand_def(TensorType)
    y = result_def(TensorType)

    def verify_(self) -> None:
        a, b = shape_of(self.a), shape_of(self.b)
        _check_float8(self, "a", self.a)
        _check_float8(self, "b", self.b)
        check_float(self, "y", self.y)
        check_shape(self, "y", self.y, product_shape(self, a, b))
        for name, scale, rows in (
            ("scale_a", self.scale_a, (*a[:-1], 1)),
            ("scale_b", self.scale_b, (1, b[1])),
        ):
            check_element_type(self, name, scale, f32)
            if shape_of(scale):
                check_shape(self, name, scale, rows)
        super().verify_()


def float8_linear(
    a: SSAValue, b: SSAValue, scaling: str, a_format: str, b_format: str
) -> Float8LinearOp:
    """
    Returns the matrix product of `a` and `b`, computed in the 8-bit formats `a_format`
    and `b_format`. The result has the element type of `a`.
    """
    shape = (*shape_of(a)[:-1], shape_of(b)[1])
    return Float8LinearOp(
        *(a, b),
        scaling=scaling,
        a_format=a_format,
        b_format=b_format,
        y=TensorType(element_type(a), shape),
    )


def scale_at(op: Operation) -> Float8ScaleOp | None:
    """
    Returns the scale op behind `op`: `op` itself if it is a scale op, or the scale op
    whose result `op` reduces over devices. Returns None for any other op.
    """
    owner: Operation | Block = op
    while isinstance(owner, Operation) and owner.name.startswith("collective."):
        owner = owner.operands[0].owner
    return owner if isinstance(owner, Float8ScaleOp) else None


def is_scale(op: Operation) -> bool:
    """
    Whether an op computes a scale of narrow floats, or reduces such a scale over
    devices.
    """
    return scale_at(op) is not None


def may_be_delayed(op: Operation) -> bool:
    """
    Whether an op computes or reduces a scale of 8-bit floats, which libraries can take
    from earlier steps. They do not do this with blocks.
    """
    scale = scale_at(op)
    return scale is not None and scale.format.data in FORMATS


def rounds_to_float8(op: Operation) -> bool:
    """Whether an op rounds a tensor to narrow floats, or is a scale of them."""
    return isinstance(op, ToFloat8Op | QuantizeBlocksOp) or is_scale(op)


def _check_float8(op: TrainOp, name: str, value: SSAValue) -> None:
    if not is_float8(element_type(value)):
        raise VerifyException(
            f"{op.name}: {name} has elements of type {element_type(value)}, expected "
            f"8-bit floats: float8e4m3fn or float8e5m2"
        )


OPS = [Float8LinearOp, Float8ScaleOp, ToFloat8Op, Float8ProductOp]
