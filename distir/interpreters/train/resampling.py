"""Gradients, on arrays, of resizing and of sampling at the points of a grid."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import TensorType, f64
from xdsl.ir import Block

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import element_type_of_dtype
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.resampling import (
    GridSampleGradGridOp,
    GridSampleGradInputOp,
    GridSampleGradOp,
    ResizeGradOp,
)
from distir.interpreters.onnx_evaluator import evaluate
from distir.interpreters.sampling import Sampling
from distir.interpreters.train.arithmetic import Array, computes


@computes(ResizeGradOp)
def resize_gradient(op: ResizeGradOp, dy: Array) -> Array:
    found = dy.astype(np.float64)
    for axis in op.resized:
        found = np.moveaxis(
            np.tensordot(found, _weights(op, axis), ([axis], [1])), -1, axis
        )
    return found.astype(dy.dtype)


def _weights(op: ResizeGradOp, axis: int) -> Array:
    """
    Returns the matrix of a resize along `axis`. Element [i, j] is the weight of input
    element i in result element j. `onnx.Resize` of an identity matrix gives this
    matrix.
    """
    size, count = shape_of(op.dx)[axis], shape_of(op.dy)[axis]
    scale = op.factors[axis]
    operands: list[Array | None] = [np.eye(size), None]
    if scale == count / size:
        operands += [None, np.array([count])]
    else:
        operands.append(np.array([scale], np.float32))
    types = [
        TensorType(element_type_of_dtype(a.dtype), a.shape)
        for a in operands
        if a is not None
    ]
    values = iter(Block(arg_types=types).args)
    forward = operator("Resize").build_op(
        [None if a is None else next(values) for a in operands],
        [TensorType(f64, [size, count])],
        {
            "axes": [1],
            "mode": op.mode.data,
            "coordinate_transformation_mode": op.coordinate_transformation_mode.data,
            "nearest_mode": op.nearest_mode.data,
            "cubic_coeff_a": op.cubic_coeff_a.value.data,
            "antialias": int(op.antialias is not None),
            "exclude_outside": int(op.exclude_outside is not None),
        },
    )
    return evaluate(forward, operands)[0]


def _sampling(op: GridSampleGradOp) -> Sampling:
    return Sampling(op.mode.data, op.padding_mode.data, op.align_corners is not None)


@computes(GridSampleGradInputOp)
def of_image(op: GridSampleGradInputOp, dy: Array, grid: Array) -> Array:
    return _sampling(op).image_gradient(dy, grid, shape_of(op.dx))


@computes(GridSampleGradGridOp)
def of_grid(op: GridSampleGradGridOp, dy: Array, x: Array, grid: Array) -> Array:
    return _sampling(op).grid_gradient(dy, x, grid)
