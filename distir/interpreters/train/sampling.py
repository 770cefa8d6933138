"""Gradients of sampling at the points of a grid on arrays."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.sampling import (
    GridSampleGradGridOp,
    GridSampleGradInputOp,
    GridSampleGradOp,
)
from distir.interpreters.sampling import Sampling
from distir.interpreters.train.arithmetic import Array, computes


def _sampling(op: GridSampleGradOp) -> Sampling:
    return Sampling(op.mode.data, op.padding_mode.data, op.align_corners is not None)


@computes(GridSampleGradInputOp)
def of_image(op: GridSampleGradInputOp, dy: Array, grid: Array) -> Array:
    return _sampling(op).image_gradient(dy, grid, shape_of(op.dx))


@computes(GridSampleGradGridOp)
def of_grid(op: GridSampleGradGridOp, dy: Array, x: Array, grid: Array) -> Array:
    return _sampling(op).grid_gradient(dy, x, grid)
