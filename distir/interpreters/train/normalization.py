"""The gradients of normalisation layers on arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.train_ops.normalization import (
    LayerNormGradOp,
    NormGradOp,
    RmsNormGradOp,
)
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
    op_class,
)
from distir.interpreters.train.arithmetic import Array, widen


def _mean(x: Array, axis: int) -> Array:
    """Over the dimensions from `axis` on, which stay with size 1."""
    return x.mean(tuple(range(axis, x.ndim)), keepdims=True)


def _inverse_root(op: NormGradOp, square: Array) -> Array:
    epsilon = square.dtype.type(op.epsilon.value.data)
    return 1 / np.sqrt(square + epsilon)


@register_reference_implementations
@register_impls
class NormalizationGradients(InterpreterFunctions):
    """`train.layer_norm_grad` and `train.rms_norm_grad`."""

    @impl(LayerNormGradOp)
    def layer_norm(
        self, interpreter: Interpreter, op: LayerNormGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, x, scale = map(widen, args)
        axis = op.dimension
        rows = tuple(range(axis))
        centered = x - _mean(x, axis)
        inverse = _inverse_root(op, _mean(centered * centered, axis))
        n = centered * inverse
        g = dy * scale
        dx = inverse * (g - _mean(g, axis) - n * _mean(g * n, axis))
        found = [dx.astype(args[1].dtype), (dy * n).sum(rows).astype(args[2].dtype)]
        if op.dbias is not None:
            found.append(dy.sum(rows).astype(args[2].dtype))
        return tuple(found)

    @impl(RmsNormGradOp)
    def rms_norm(
        self, interpreter: Interpreter, op: RmsNormGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, x, scale = map(widen, args)
        axis = op.dimension
        rows = tuple(range(axis))
        inverse = _inverse_root(op, _mean(x * x, axis))
        n = x * inverse
        g = dy * scale
        dx = inverse * (g - n * _mean(g * n, axis))
        return dx.astype(args[1].dtype), (dy * n).sum(rows).astype(args[2].dtype)


@cost_function("train.layer_norm_grad")
def layer_norm_gradient(context: CostContext) -> Cost:
    """The kernel takes statistics from a forward that runs again, beside its result."""
    (_, x, _) = context.operand_bytes
    cost = context.roofline(moved=context.bytes + 2 * x)
    return replace(cost, workspace=x)


op_class("normalization", "train.layer_norm_grad", "train.rms_norm_grad")
