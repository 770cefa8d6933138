"""The gradient rule of Fourier transforms."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.constants import constant_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient, shape
from distir.gradients.rules.shape import padded
from distir.program import describe


@onnx_gradient("DFT")
def transform(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    The transform of the gradient the other way, without its division by the length n or with
    one: y = F x has dx = F^H dy, which is n times the inverse. Of a real x only the real
    part is left; the rest gets zeros. Half of the frequencies are all of them, the
    others with a gradient of zero; those that the inverse takes twice get it twice. Raises
    DistIRError for an axis or a length that is computed.
    """
    x = op.operands[0]
    where, length = op.input(2), op.input(1)
    axis = -2 if where is None else constant_of(where)
    known = None if length is None else constant_of(length)
    if axis is None or (length is not None and known is None):
        raise DistIRError(
            f"{describe(op)} has no gradient rule where its axis or its length is computed; "
            f"transform along a dimension that is known"
        )
    axis = int(axis) % len(shape(x))
    inverse, onesided = op.attribute("inverse"), op.attribute("onesided")
    before = shape(x)[axis]
    if known is not None:
        n = int(known)
    else:
        n = 2 * (before - 1) if inverse and onesided else before
    if inverse and onesided:
        dx = _transformed(dy, axis, 0, build, onesided=1)
        weights = np.full(n // 2 + 1, 2 / n)
        weights[0] = 1 / n
        if n % 2 == 0:
            weights[-1] = 1 / n
        sizes = [n // 2 + 1, *[1] * (len(shape(x)) - axis - 1)]
        dx = build.onnx("Mul", dx, build.array(weights.reshape(sizes), dx))
    else:
        if onesided:
            dy = _resized(dy, axis, n, build)
        dx = _transformed(dy, axis, 1 - inverse, build)
        dx = build.onnx("Mul", dx, build.scalar(1 / n if inverse else n, dx))
    dx = _resized(dx, axis, before, build)
    if shape(x)[-1] == 1:
        bounds = [build.integers([i]) for i in (0, 1, len(shape(x)) - 1)]
        dx = build.onnx("Slice", dx, *bounds)
    return [dx, *[None] * (len(op.operands) - 1)]


def _transformed(
    value: SSAValue, axis: int, inverse: int, build: GradientBuilder, onesided: int = 0
) -> SSAValue:
    where = build.constant(np.array(axis, np.int64))
    return build.onnx("DFT", value, None, where, inverse=inverse, onesided=onesided)


def _resized(value: SSAValue, axis: int, size: int, build: GradientBuilder) -> SSAValue:
    """Returns the value with so many elements along an axis, cut or with zeros behind."""
    ends = [0] * len(shape(value))
    ends[axis] = size - shape(value)[axis]
    return padded(value, [0] * len(ends), ends, build)
