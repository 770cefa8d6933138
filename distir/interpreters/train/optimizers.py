"""Steps of optimizers that formulas cannot express, on arrays."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.muon import OrthogonalizeOp
from distir.dialects.train_ops.quantized_states import (
    DequantizeStateOp,
    QuantizeStateOp,
    code_values,
)
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.simulator.work import Product
from distir.interpreters.train.arithmetic import Array, computes


@computes(OrthogonalizeOp)
def orthogonalized(op: OrthogonalizeOp, x: Array) -> Array:
    """
    Returns the matrices of `x` with singular values near 1. The sums of products in 16
    bits are rounded once at the end, as in PyTorch.
    """
    a, b, c = (value.value.data for value in (op.a, op.b, op.c))
    narrow = numpy_dtype(element_type(op.x))

    def rounded(y: Array) -> Array:
        return y.astype(narrow).astype(y.dtype)

    is_tall = x.shape[-2] > x.shape[-1]
    x = np.swapaxes(x, -1, -2) if is_tall else x
    norm = rounded(np.sqrt((x * x).sum((-2, -1), keepdims=True)))
    x = rounded(x / np.maximum(norm, x.dtype.type(op.epsilon.value.data)))
    for _ in range(op.steps.value.data):
        gram = rounded(x @ np.swapaxes(x, -1, -2))
        x = rounded(a * x + rounded(b * gram + c * (gram @ gram)) @ x)
    return np.swapaxes(x, -1, -2) if is_tall else x


@cost_function("train.orthogonalize")
def iteration(context: CostContext) -> Cost:
    """
    Returns the cost of an orthogonalisation: a norm, a division, and three products in
    each step. Its workspace holds one matrix of the result's shape and two square
    matrices.
    """
    op = context.op
    assert isinstance(op, OrthogonalizeOp)
    shape = shape_of(op.x)
    short, long = sorted(shape[-2:])
    batch = round(prod(shape[:-2]) / prod(context.work.parts.values()))
    (whole,) = context.result_bytes
    square = whole // max(long, 1) * short
    gram = Product(batch, short, short, long, (long, short, short))
    power = Product(batch, short, short, short, (short, short, short))
    moved = Product(batch, short, long, short, (short, long, long))

    def seconds(product: Product, touched: int) -> float:
        flops = 2.0 * product.batch * product.m * product.n * product.k
        return context.roofline(flops, touched, product).seconds

    elementwise = context.roofline(0.0, whole).seconds
    elementwise += context.roofline(0.0, 2 * whole).seconds
    step = seconds(gram, whole + square) + seconds(power, 2 * square)
    step += seconds(moved, 2 * whole + square)
    issue = context.roofline(0.0, whole).issue
    steps = op.steps.value.data
    return Cost(elementwise + steps * step, whole + 2 * square, issue * (2 + 3 * steps))


@cache
def _numbers(is_signed: bool) -> Array:
    return np.array(code_values(is_signed), np.float32)


def _blocks(x: Array, scales: Array) -> Array:
    """
    Returns `x` with its last dimension divided into blocks, one for each of `scales`.
    """
    return x.reshape(*scales.shape, -1)


@computes(QuantizeStateOp)
def quantized(op: QuantizeStateOp, state: Array) -> tuple[Array, Array]:
    numbers = _numbers(op.signed is not None)
    state = state.astype(np.float32)
    block = op.block.value.data
    blocks = state.reshape(*state.shape[:-1], -1, block)
    scales = np.abs(blocks).max(-1)
    relative = blocks / np.where(scales > 0, scales, 1)[..., None]
    middles = (numbers[1:] + numbers[:-1]) * np.float32(0.5)
    codes = np.searchsorted(middles, relative).astype(np.uint8)
    return codes.reshape(state.shape), scales


@computes(DequantizeStateOp)
def dequantized(op: DequantizeStateOp, codes: Array, scales: Array) -> Any:
    numbers = _numbers(op.signed is not None)
    values = numbers[_blocks(codes, scales)] * scales[..., None]
    return values.reshape(codes.shape).astype(numpy_dtype(element_type(op.state)))
