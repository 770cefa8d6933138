"""
Matrix products of narrow floats with a scale for each block of elements, and the
conversion of tensors to such blocks. `BLOCK_RECIPES` has an entry for each format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, TensorType, UnitAttr, f32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx_ops.values import ElementType
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, TrainOp
from distir.dialects.train_ops.checks import (
    check_choice,
    check_element_type,
    check_float,
    check_shape,
    check_type,
    checked_axis,
    product_shape,
)


@dataclass(frozen=True)
class BlockRecipe:
    """
    A format of narrow floats with a scale for each block of elements that follow each
    other along the dimension over which a product sums.

    - `element`: the type of the elements, and `largest`, its largest value;
    - `size`: the number of elements in a block;
    - `scale`: the type of the scales, and `largest_scale`, its largest value;
    - `has_tensor_scale`: whether a tensor also has one scale in f32, which brings the
      scales of its blocks into the range of their type;
    - `has_square_weights`: whether the blocks of parameters are squares of `size` x
      `size` elements, so that a parameter and its transpose have equal elements.
    """

    element: ElementType
    largest: float
    size: int
    scale: ElementType
    largest_scale: float
    has_tensor_scale: bool = False
    has_square_weights: bool = False


BLOCK_RECIPES = {
    "mxfp8": BlockRecipe(
        element=ElementType(StringAttr("float8e4m3fn")),
        largest=448.0,
        size=32,
        scale=ElementType(StringAttr("float8e8m0")),
        largest_scale=2.0**127,
    ),
    "nvfp4": BlockRecipe(
        element=ElementType(StringAttr("float4e2m1")),
        largest=6.0,
        size=16,
        scale=ElementType(StringAttr("float8e4m3fn")),
        largest_scale=448.0,
        has_tensor_scale=True,
        has_square_weights=True,
    ),
}
"""
The recipes by name. `mxfp8` is the MXFP8 of the Open Compute Project's microscaling
formats, with E4M3 elements in both directions. `nvfp4` is NVIDIA's format of 4-bit
floats for Blackwell.
"""


class BlockOp(TrainOp):
    """Base of the ops on blocks. `recipe` is the name of one of `BLOCK_RECIPES`."""

    recipe = prop_def(StringAttr)

    @property
    def format(self) -> BlockRecipe:
        """The recipe."""
        return BLOCK_RECIPES[self.recipe.data]

    @property
    def size(self) -> int:
        """The number of elements of a block along a dimension."""
        return self.format.size

    @property
    def element(self) -> str:
        """The name of the type of the elements."""
        return self.format.element.kind.data

    @property
    def scale_element(self) -> str:
        """The name of the type of the scales."""
        return self.format.scale.kind.data

    def verify_(self) -> None:
        check_choice(self, "recipe", self.recipe.data, BLOCK_RECIPES)
        super().verify_()

    def check_blocks(
        self, name: str, axis: int, blocks: SSAValue, scale: SSAValue, square: bool
    ) -> None:
        """
        Checks a matrix `blocks`, the operand or result `name`, with blocks along the
        dimension `axis`, and its `scale`. Raises VerifyException if they do not fit.
        """
        recipe = self.format
        check_element_type(self, name, blocks, recipe.element)
        sizes = list(shape_of(blocks))
        for dim in _divided(len(sizes), axis, square):
            if sizes[dim] % recipe.size:
                raise VerifyException(
                    f"{self.name}: dimension {dim} of {name} has {sizes[dim]} elements, "
                    f"which are no whole blocks of {recipe.size}"
                )
        expected = TensorType(recipe.scale, scale_shape(recipe, sizes, axis, square))
        check_type(self, f"scale of {name}", scale, expected)

    def check_tensor_scales(
        self, name: str, values: Sequence[SSAValue], count: int
    ) -> None:
        """
        Checks the scales of whole tensors: there are `count` where the recipe has such
        scales, and none where it has not. Raises VerifyException otherwise.
        """
        expected = count if self.format.has_tensor_scale else 0
        if len(values) != expected:
            raise VerifyException(
                f"{self.name}: {name} has {len(values)} scales of whole tensors, expected "
                f"{expected} for {self.recipe.data}"
            )
        for value in values:
            check_type(self, name, value, TensorType(f32, []))


@irdl_op_definition
class QuantizeBlocksOp(BlockOp):
    """
    Converts `x` to narrow floats with a scale for each block along `axis`: an element
    is approximately the narrow float times the scale of its block. With `square`, `x`
    is a matrix whose blocks are squares.

    The scale makes the largest magnitude of a block fit the range of the narrow floats.
    A scale that is a power of two (E8M0) is rounded up, so that no element is too
    large. Any other scale is rounded to the nearest number of its type, after
    multiplication by `tensor_scale` (see `train.float8_scale`); elements are multiplied
    by `tensor_scale` too. Elements are rounded to the nearest narrow float, ties to
    even. A block with an element that is not finite gets the scale NaN.
    """

    name = "train.quantize_blocks"
    TORCH: ClassVar[str] = (
        "quantize_blocks({*}, dim={op.dimension}, square={square:flag}, size={op.size}, "
        "element={op.element}, scale={op.scale_element})"
    )
    TORCH_MODULE: ClassVar[str] = "block_floats"
    COMPUTES_IN: ClassVar[str] = "x"

    x = operand_def(TensorType)
    tensor_scale = opt_operand_def(TensorType)
    axis = prop_def(I64)
    square = opt_prop_def(UnitAttr)
    quantized = result_def(TensorType)
    scale = result_def(TensorType)

    @property
    def dimension(self) -> int:
        """The index of `axis`, counted from 0."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.x)))

    def verify_(self) -> None:
        super().verify_()
        check_float(self, "x", self.x)
        shape, square = shape_of(self.x), self.square is not None
        if square and len(shape) != 2:
            raise VerifyException(
                f"{self.name}: x has shape {list(shape)}; only matrices have square blocks"
            )
        check_shape(self, "quantized", self.quantized, shape)
        self.check_blocks(
            "quantized", self.dimension, self.quantized, self.scale, square
        )
        own = [] if self.tensor_scale is None else [self.tensor_scale]
        self.check_tensor_scales("tensor_scale", own, 1)


@irdl_op_definition
class BlockProductOp(BlockOp):
    """
    A matrix product of blocks: y = a b. `a` is `[..., m, k]` and `b` is `[k, n]`, with
    blocks along `k`. Each element stands for its value times the scale of its block,
    divided by the scale of its tensor where the recipe has one (`tensor_scales`: those
    of `a` and `b`). With `square`, the blocks of `b` are squares. Sums are accumulated
    in f32.
    """

    name = "train.block_product"
    TORCH: ClassVar[str] = "block_product({*}, dtype={result:dtype})"
    TORCH_MODULE: ClassVar[str] = "block_floats"

    a = operand_def(TensorType)
    b = operand_def(TensorType)
    scale_a = operand_def(TensorType)
    scale_b = operand_def(TensorType)
    tensor_scales = var_operand_def(TensorType)
    square = opt_prop_def(UnitAttr)
    y = result_def(TensorType)

    def verify_(self) -> None:
        super().verify_()
        a, b = shape_of(self.a), shape_of(self.b)
        check_float(self, "y", self.y)
        check_shape(self, "y", self.y, product_shape(self, a, b))
        square = self.square is not None
        self.check_blocks("a", len(a) - 1, self.a, self.scale_a, False)
        self.check_blocks("b", 0, self.b, self.scale_b, square)
        self.check_tensor_scales("tensor_scales", self.tensor_scales, 2)


@irdl_op_definition
class BlockLinearOp(BlockOp):
    """
    A matrix product y = a b of activations `a` `[..., m, k]` and a parameter `b` `[k,
    n]`, or in a gradient of `dy` and the transposed parameter. Both factors are
    converted to blocks along `k` and multiplied. Operands and result have the model's
    precision.

    `kept` is absent, or holds the transposed `a`, a matrix `[k, ...m]`, in blocks along
    its rows: the elements, the scales of blocks and, where the recipe has one, the
    scale of the tensor. The product does not use them. The gradient of `b` does, so
    that a training step keeps these blocks for it, and not `a`.

    The pass `expand-float8` replaces this op with its parts after gradients are taken.
    Devices cannot split the op itself.
    """

    name = "train.block_linear"
    TORCH: ClassVar[str] = (
        "block_linear({0}, {1}, square={op.is_square}, size={op.size}, "
        "element={op.element}, scale={op.scale_element})"
    )
    TORCH_MODULE: ClassVar[str] = "block_floats"

    a = operand_def(TensorType)
    b = operand_def(TensorType)
    kept = var_operand_def(TensorType)
    y = result_def(TensorType)

    @property
    def is_square(self) -> bool:
        """Whether the blocks of `b` are squares."""
        return self.format.has_square_weights

    def verify_(self) -> None:
        super().verify_()
        check_float(self, "a", self.a)
        check_element_type(self, "b", self.b, element_type(self.a))
        a, b = shape_of(self.a), shape_of(self.b)
        shape = product_shape(self, a, b)
        check_type(self, "y", self.y, TensorType(element_type(self.a), shape))
        if not self.kept:
            return
        expected = 2 + self.format.has_tensor_scale
        if len(self.kept) != expected:
            raise VerifyException(
                f"{self.name}: kept has {len(self.kept)} values, expected {expected} for "
                f"{self.recipe.data}"
            )
        blocks, scale, *tensor_scales = self.kept
        check_shape(self, "kept", blocks, (a[-1], prod(a[:-1])))
        self.check_blocks("kept", 1, blocks, scale, False)
        self.check_tensor_scales("kept", tensor_scales, 1)


def _divided(rank: int, axis: int, square: bool) -> tuple[int, ...]:
    """Returns the dimensions that blocks divide, of a tensor with `rank` dimensions."""
    return tuple(range(rank)) if square else (axis,)


def scale_shape(
    recipe: BlockRecipe, shape: tuple[int, ...] | list[int], axis: int, square: bool
) -> tuple[int, ...]:
    """
    Returns the shape of the scales of a tensor with shape `shape` and blocks along
    `axis`. With `square`, blocks are squares.
    """
    divided = _divided(len(shape), axis, square)
    return tuple(
        n // recipe.size if dim in divided else n for dim, n in enumerate(shape)
    )


def quantize_blocks(
    x: SSAValue,
    recipe: str,
    axis: int,
    tensor_scale: SSAValue | None = None,
    *,
    square: bool = False,
) -> QuantizeBlocksOp:
    """Returns the op that converts `x` to blocks of a recipe along `axis`."""
    format_, shape = BLOCK_RECIPES[recipe], shape_of(x)
    return QuantizeBlocksOp(
        *(x, tensor_scale),
        recipe=recipe,
        axis=axis,
        square=square,
        quantized=TensorType(format_.element, shape),
        scale=TensorType(format_.scale, scale_shape(format_, shape, axis, square)),
    )


OPS = [QuantizeBlocksOp, BlockProductOp, BlockLinearOp]
