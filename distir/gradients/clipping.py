"""Gradient clipping by the norm of all gradients together."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from distir.dialects.train_ops.optimizers import SquareSumOp
from distir.gradients.rule import GradientBuilder

EPSILON = 1e-6
"""
PyTorch's constant in gradient clipping: gradients of norm n are multiplied by `max_norm
/ (n + EPSILON)`.
"""


def clipped(
    gradients: Sequence[SSAValue], max_norm: float, build: GradientBuilder
) -> list[SSAValue]:
    """
    Returns the gradients times `min(1, max_norm / (norm + 1e-6))`, where `norm` is the
    norm of all gradients together. The squares for the norm are summed in f32 (f64 for
    f64 gradients).
    """
    if not gradients:
        return []
    norm = build.onnx("Sqrt", sum_of_squares(gradients, build))
    bound = build.onnx("Add", norm, build.scalar(EPSILON, norm))
    ratio = build.onnx("Div", build.scalar(max_norm, norm), bound)
    factor = build.onnx("Min", ratio, build.scalar(1.0, norm))
    return [build.onnx("Mul", g, build.cast(factor, g)) for g in gradients]


def sum_of_squares(gradients: Sequence[SSAValue], build: GradientBuilder) -> SSAValue:
    """
    Returns the sum of the squares of all elements of all gradients. There must be at
    least one gradient.
    """
    squares = [build.result(SquareSumOp(g)) for g in gradients]
    return build.onnx("Sum", *(build.cast(s, squares[0]) for s in squares))
