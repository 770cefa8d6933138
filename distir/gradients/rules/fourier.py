"""The gradient rule of Fourier transforms."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.constants import constant_of
from distir.dialects.onnx_op import OnnxOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient, shape
from distir.program import describe


@onnx_gradient("DFT")
def transform(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    The transform of the gradient the other way, without its division by the length n or with
    one: y = F x has dx = F^H dy, which is n times the inverse. Of a real x only the real
    part is left. Raises DistIRError for a transform that cuts or pads x, or gives half of the
    frequencies.
    """
    x = op.operands[0]
    where = op.input(2)
    axis = -2 if where is None else constant_of(where)
    rank, length = len(shape(x)), op.input(1)
    if axis is None or op.attribute("onesided"):
        raise DistIRError(
            f"{describe(op)} has no gradient rule where it gives half of the frequencies, or "
            f"where its axis is computed; take the whole transform (torch.fft.fft), along a "
            f"dimension that is known"
        )
    axis = int(axis)
    size = shape(x)[axis % rank]
    if length is not None and constant_of(length) != size:
        raise DistIRError(
            f"{describe(op)} has no gradient rule where it pads or cuts its operand; pad or "
            f"cut it before, and transform all of it"
        )
    inverse = op.attribute("inverse")
    dx = build.onnx("DFT", dy, None, _scalar(axis % rank, build), inverse=1 - inverse)
    factor = 1 / size if inverse else float(size)
    dx = build.onnx("Mul", dx, build.scalar(factor, dx))
    if shape(x)[-1] == 1:
        bounds = [build.integers([n]) for n in (0, 1, rank - 1)]
        dx = build.onnx("Slice", dx, *bounds)
    return [dx, *[None] * (len(op.operands) - 1)]


def _scalar(value: int, build: GradientBuilder) -> SSAValue:
    return build.constant(np.array(value, np.int64))
