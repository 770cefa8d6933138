"""Clips gradients by their global norm, as `torch.nn.utils.clip_grad_norm_` does."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.optimizers import SquareSumOp
from distir.gradients.rule import GradientBuilder

EPSILON = 1e-6
"""PyTorch's constant: the factor for gradients of norm n is `max_norm / (n + EPSILON)`."""


def clipped(
    gradients: Sequence[SSAValue], max_norm: float, build: GradientBuilder
) -> list[SSAValue]:
    """
    Returns the gradients times `min(1, max_norm / (norm + 1e-6))`, where `norm` is that of
    all of them together. Squares are summed in f32 (f64 for f64 gradients).
    """
    if not gradients:
        return []
    norm = build.onnx("Sqrt", sum_of_squares(gradients, build))
    bound = build.onnx("Add", norm, build.scalar(EPSILON, norm))
    ratio = build.onnx("Div", build.scalar(max_norm, norm), bound)
    factor = build.onnx("Min", ratio, build.scalar(1.0, norm))
    return [build.onnx("Mul", g, _as(factor, g, build)) for g in gradients]


def sum_of_squares(gradients: Sequence[SSAValue], build: GradientBuilder) -> SSAValue:
    """
    Returns the sum of the squares of all elements of all gradients; there must be at least
    one.
    """
    squares = [build.add(SquareSumOp(g)).results[0] for g in gradients]
    wide = [_as(s, squares[0], build) for s in squares]
    return build.onnx("Sum", *wide)


def _as(value: SSAValue, like: SSAValue, build: GradientBuilder) -> SSAValue:
    """Returns the value with elements of the type of `like`."""
    target = element_type(like)
    if element_type(value) == target:
        return value
    return build.onnx("Cast", value, to=onnx_element_type(target))
