"""Mixtures of experts that drop no token, for the layers of decoders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.dialects.builtin import f32, i64
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedProductOp,
)
from distir.frontends.models.function_builder import FunctionBuilder


def chosen_experts(
    b: FunctionBuilder, scores: SSAValue, choices: int
) -> tuple[SSAValue, SSAValue]:
    """
    Returns the weights and the ids of the `choices` experts with the largest scores,
    each [tokens, choices]. `scores` is [tokens, experts]. The weights of a token add up
    to 1.
    """
    tokens, experts = shape_of(scores)
    gates = b.op("Cast", [scores], (tokens, experts), f32, to=1)
    gates = b.op("Softmax", [gates], (tokens, experts), f32, axis=-1)
    chosen: list[tuple[tuple[int, ...], TypeAttribute | None]]
    chosen = [((tokens, choices), f32), ((tokens, choices), i64)]
    count = b.constant(np.array([choices]))
    weights, ids = b.results("TopK", [gates, count], chosen, axis=-1)
    last = b.constant(np.array([-1]))
    total = b.op("ReduceSum", [weights, last], (tokens, 1), f32, keepdims=1)
    return b.op("Div", [weights, total], (tokens, choices), f32), ids


def mixture(
    b: FunctionBuilder,
    x: SSAValue,
    routes: tuple[SSAValue, SSAValue],
    experts: int,
    inside: Callable[[SSAValue, SSAValue], SSAValue],
    group_limit: tuple[int, int] | None = None,
) -> SSAValue:
    """
    Returns the mixture of experts on tokens `x`, [tokens, d_model], as [tokens, 1,
    d_model]. An expert takes any number of tokens.

    - `routes`: the weights and ids of each token's experts, each [tokens, choices].
    - `inside`: a function that adds the ops of the experts. It takes the rows of
      tokens, [1, tokens, choices, d_model], and the row number of each choice, and
      returns the rows of the result.
    - `group_limit`: the numbers of groups of experts and of groups of one token, if the
      router limits these; only estimates depend on it.
    """
    weights, ids = routes
    (tokens, d_model), choices = shape_of(x), shape_of(ids)[1]
    shape = (tokens, 1, choices)
    target = b.constant(np.array([-1, 1, choices]))  # holds for a part of the batch too
    ids = b.op("Reshape", [ids, target], shape, i64)
    weights = b.op("Reshape", [weights, target], shape, f32)
    places = ExpertPlacesOp(
        ids,
        experts=experts,
        capacity=1,
        group_limit=group_limit,
        slots=b.type(shape, i64),
        rows=b.type((1, tokens, choices), i64),
    )
    slots, rows = b.add(places)
    outside = (tokens, 1, d_model)
    flat = b.constant(np.array([-1, 1, d_model]))
    x = b.op("Reshape", [x, flat], outside)
    all_rows = (1, tokens, choices, d_model)
    [h] = b.add(DispatchOp(x, slots, rows, None, result=b.type(all_rows)))
    h = inside(h, rows)
    h = b.op("Cast", [h], all_rows, f32, to=1)
    [h] = b.add(CombineOp(h, slots, rows, weights, result=b.type(outside, f32)))
    return b.op("CastLike", [h, b.constant(np.array(0, b.dtype))], outside)


def grouped_product(
    b: FunctionBuilder,
    h: SSAValue,
    rows: SSAValue,
    matrices: SSAValue,
    *,
    transposed: bool,
) -> SSAValue:
    """
    Returns the product of each row of `h`, [1, tokens, choices, inputs], and the matrix
    of the row's expert. `matrices` is [experts, inputs, outputs], or [experts, outputs,
    inputs] if `transposed`.
    """
    _, tokens, choices, _ = shape_of(h)
    outputs = shape_of(matrices)[1 if transposed else 2]
    result = b.type((1, tokens, choices, outputs))
    op = GroupedProductOp(
        h, rows, matrices, transposed=transposed, taken=choices, result=result
    )
    [h] = b.add(op)
    return h
