"""The recurrence of selective state spaces, on arrays, and its cost."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isqrt, sqrt

import numpy as np

from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.selective_scan import (
    SelectiveScanGradOp,
    SelectiveScanOp,
)
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes


def _states(x: Array, dt: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """
    Returns two arrays [T, B, D, N]: the factors by which the states decay in each step,
    and the states after each step.
    """
    decays = np.exp(np.moveaxis(dt, 2, 0)[..., None] * a)
    added = np.moveaxis(dt * x, 2, 0)[..., None] * np.moveaxis(b, 2, 0)[:, :, None]
    states = np.empty(decays.shape, x.dtype)
    state = np.zeros(decays.shape[1:], x.dtype)
    for step, (decay, more) in enumerate(zip(decays, added, strict=True)):
        state = decay * state + more
        states[step] = state
    return decays, states


@computes(SelectiveScanOp)
def selective_scan(op: SelectiveScanOp, *operands: Array) -> Array:
    x, dt, a, b, c = operands
    return np.einsum("tbdn,bnt->bdt", _states(x, dt, a, b)[1], c)


@computes(SelectiveScanGradOp)
def selective_scan_gradient(
    op: SelectiveScanGradOp, *operands: Array
) -> tuple[Array, ...]:
    dy, x, dt, a, b, c = operands
    decays, states = _states(x, dt, a, b)
    slopes = np.empty_like(states)  # the gradients of the states after each step
    later = np.zeros_like(states[0])
    for step in reversed(range(len(states))):
        slopes[step] = later + dy[:, :, step, None] * c[:, None, :, step]
        later = decays[step] * slopes[step]
    before = np.concatenate([np.zeros_like(states[:1]), states[:-1]])
    exponents = slopes * before * decays  # the gradients of dt * a
    inputs = np.einsum("tbdn,bnt->bdt", slopes, b)  # the gradients of dt * x
    return (
        inputs * dt,
        np.einsum("tbdn,dn->bdt", exponents, a) + inputs * x,
        np.einsum("tbdn,bdt->dn", exponents, dt),
        np.einsum("tbdn,bdt->bnt", slopes, dt * x),
        np.einsum("tbdn,bdt->bnt", states, dy),
    )


@cost_function("train.selective_scan", "train.selective_scan_grad")
def scan_cost(context: CostContext) -> Cost:
    """
    Returns the cost of a selective scan by a kernel that keeps the states on the chip.
    Operands and results pass through memory once. All arithmetic is in 32-bit floats,
    without the matrix units for 16-bit floats. A gradient has the workspace that the
    backward pass of generated packages needs: the states before each of sqrt(T) chunks
    of the T steps, the states within one chunk, and the intermediate arrays of one
    step.
    """
    device, element = context.device, context.element_type
    slower = device.peak(element) / min(device.peak(element), device.peak("f32"))
    cost = context.roofline(flops=context.flops * slower)
    op = context.op
    if not isinstance(op, SelectiveScanGradOp):
        return cost
    x, a, b = (
        context.operand_bytes[i] // bytes_per_element(element_type(op.operands[i]))
        for i in (1, 3, 4)
    )
    steps = shape_of(op.operands[1].type)[-1]
    # x has batch x channels x T elements, a channels x states, b batch x states x T.
    state = 4 * round(sqrt(x * a * b) / steps)
    chunk = max(isqrt(steps), 1)
    return replace(cost, workspace=(ceil(steps / chunk) + chunk + 5) * state)
