"""
The gradient rule of products of narrow floats in blocks, and builders of these products
and of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.block_floats import (
    BLOCK_RECIPES,
    BlockLinearOp,
    BlockProductOp,
    quantize_blocks,
)
from distir.dialects.train_ops.float8 import Float8ScaleOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe


@gradient_rule("train.block_linear")
def linear(
    op: BlockLinearOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.block_linear`, y = a b: `da = dy b'` and `db = a' dy`, where
    ' transposes. Each product has blocks along the dimension that it sums over, so that
    `dy` is converted twice, and `a'` was converted in the forward pass. The gradient
    treats rounding as the identity. Raises DistIRError if the rows of `a` are no whole
    blocks.
    """
    dy = gradients[0]
    assert dy is not None
    da = db = None
    right, recipe = build.matrix(dy), op.recipe.data
    if is_wanted(op.a):
        type_ = TensorType(element_type(op.a), [shape(right)[0], shape(op.b)[0]])
        turned = build.transposed(op.b)
        da = build.result(BlockLinearOp(right, turned, recipe=recipe, y=type_))
        if right is not dy:
            da = build.onnx("Reshape", da, build.integers(shape(op.a)))
    if is_wanted(op.b):
        kept = list(op.kept)
        if not kept:
            raise DistIRError(
                f"differentiate: {describe(op)} multiplies {shape(right)[0]} rows, which are "
                f"no whole blocks of {op.format.size} for {recipe}; the gradient of its "
                f"parameter sums over them; choose another batch size or sequence length"
            )
        type_ = TensorType(element_type(op.b), shape_of(op.b))
        db = block_product(
            build, kept, blocks_of(build, right, recipe, 0), recipe, type_
        )
    return [da, db, *(None for _ in op.kept)]


def blocks_of(
    build: GradientBuilder,
    x: SSAValue,
    recipe: str,
    axis: int,
    *,
    square: bool = False,
) -> list[SSAValue]:
    """
    Builds the conversion of `x` to blocks of a recipe along `axis`. Returns the narrow
    floats, the scales of blocks and, where the recipe has one, the scale of the tensor.
    """
    of_tensor: list[SSAValue] = []
    if BLOCK_RECIPES[recipe].has_tensor_scale:
        scale = Float8ScaleOp(x, format=recipe, scale=TensorType(f32, []))
        of_tensor.append(build.result(scale))
    op = quantize_blocks(x, recipe, axis, *of_tensor, square=square)
    return [*build.add(op).results, *of_tensor]


def block_product(
    build: GradientBuilder,
    a: Sequence[SSAValue],
    b: Sequence[SSAValue],
    recipe: str,
    type_: TensorType,
    *,
    square: bool = False,
) -> SSAValue:
    """
    Builds the product, of type `type_`, of two tensors in blocks, as `blocks_of`
    returns them. With `square`, the blocks of `b` are squares.
    """
    (blocks_a, scale_a, *of_a), (blocks_b, scale_b, *of_b) = a, b
    operands = (blocks_a, blocks_b, scale_a, scale_b, [*of_a, *of_b])
    return build.result(
        BlockProductOp(*operands, recipe=recipe, square=square, y=type_)
    )
