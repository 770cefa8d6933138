"""Transformer layers whose MLP is a mixture of experts, as in GShard."""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.decoder import (
    Decoder,
    LayerBuilder,
    attention_parameters,
)
from distir.frontends.models.function_builder import Layer, Parameter
from distir.frontends.models.routing import chosen_experts, grouped_product, mixture

CHOICES = 2
"""The number of experts to which each token goes."""


def expert_layer(
    decoder: Decoder, experts: int, capacity_factor: float, name: str
) -> Layer:
    """
    Returns a transformer layer with attention and a mixture of experts. In a step of
    generation the capacity has no effect, because experts take all tokens. Raises
    DistIRError if there are too few experts or the capacity is not positive.

    Letters in the equations: g for groups (sequences), s for tokens of a group, k for
    choices of a token, e for experts, c for places of an expert, m for the width
    outside an expert and h for the width inside.
    """
    if experts < CHOICES:
        raise DistIRError(
            f"{experts} experts: each token goes to {CHOICES} of them; build a model with "
            f"at least {CHOICES}"
        )
    if not capacity_factor > 0:
        raise DistIRError(
            f"the experts' capacity is {capacity_factor} times what evenly dealt tokens "
            f"need; choose a positive factor, such as 1"
        )
    d = decoder
    layer = LayerBuilder(
        decoder,
        [
            *attention_parameters(d.d_model),
            Parameter("moe.gate.weight", (d.d_model, experts)),
            Parameter("moe.experts.c_fc.weight", (experts, d.d_model, d.ffn)),
            Parameter("moe.experts.c_proj.weight", (experts, d.ffn, d.d_model)),
        ],
    )
    places = math.ceil(capacity_factor * CHOICES * d.seq / experts)
    x = layer.attention(layer.x)
    tokens = layer.norm("ln_2", x)
    if d.step is not None:
        h = _dropless(layer, tokens, experts)
        return layer.finish(name, layer.at("").op("Add", [x, h], d.hidden))
    dispatch, combine = _gates(layer, tokens, experts, places)

    b = layer.at("moe.experts")
    outside = (experts, d.batch, places, d.d_model)
    inside = (experts, d.batch, places, d.ffn)
    weights = [layer.p[f"moe.experts.{n}.weight"] for n in ("c_fc", "c_proj")]
    h = b.op("Einsum", [tokens, dispatch], outside, equation="gsm,gsec->egcm")
    h = b.op("Einsum", [h, weights[0]], inside, equation="egcm,emh->egch")
    h = b.op("Gelu", [h], inside, approximate="tanh")
    h = b.op("Einsum", [h, weights[1]], outside, equation="egch,ehm->egcm")
    h = b.op("Einsum", [h, combine], d.hidden, equation="egcm,gsec->gsm")
    return layer.finish(name, layer.at("").op("Add", [x, h], d.hidden))


def _dropless(layer: LayerBuilder, tokens: SSAValue, experts: int) -> SSAValue:
    """
    Returns the mixture of experts on `tokens`, [batch, seq, d_model]. An expert takes
    any number of tokens.
    """
    d, b = layer.decoder, layer.at("moe")
    count = d.batch * d.seq
    rows = b.constant(np.array([-1, d.d_model]))
    flat = b.op("Reshape", [tokens, rows], (count, d.d_model))
    b = layer.at("moe.gate")
    scores = b.op("MatMul", [flat, layer.p["moe.gate.weight"]], (count, experts))
    routes = chosen_experts(b, scores, CHOICES)
    up, down = (layer.p[f"moe.experts.{n}.weight"] for n in ("c_fc", "c_proj"))

    def inside(h: SSAValue, rows: SSAValue) -> SSAValue:
        h = grouped_product(b, h, rows, up, transposed=False)
        h = b.op("Gelu", [h], shape_of(h), approximate="tanh")
        return grouped_product(b, h, rows, down, transposed=False)

    h = mixture(layer.at("moe.experts"), flat, routes, experts, inside)
    b = layer.at("moe")
    shape = b.constant(np.array([-1, d.seq, d.d_model]))
    return b.op("Reshape", [h, shape], d.hidden)


def _gates(
    layer: LayerBuilder, tokens: SSAValue, experts: int, places: int
) -> tuple[SSAValue, SSAValue]:
    """
    Returns two tensors of shape [groups, tokens, experts, places], computed from the
    layer's `tokens`, [groups, tokens, d_model]. The first tensor is 1 where a token has
    a place in an expert. The second tensor is the weight of the expert's result for the
    token.

    The weights of a token's choices add up to 1. A choice without a place in the expert
    has weight 0.
    """
    b, d = layer.at("moe.gate"), layer.decoder
    groups, seq = d.batch, d.seq
    weight = layer.p["moe.gate.weight"]
    scores = b.op("MatMul", [tokens, weight], (groups, seq, experts))
    gates = b.op("Softmax", [scores], (groups, seq, experts), axis=-1)
    best, by_choice = (groups, seq, CHOICES), (groups, CHOICES, seq)
    count = b.constant(np.array([CHOICES], np.int64))
    chosen = b.results("TopK", [gates, count], [(best, None), (best, i64)], axis=-1)[1]
    chosen = b.op("Transpose", [chosen], by_choice, i64, perm=[0, 2, 1])

    # The place of a choice in its expert: how many chose that expert before. A choice
    # beyond the last place is a row of zeros.
    one_of = (*by_choice, experts)
    depth, ends = (b.constant(np.array(v, np.int64)) for v in (experts, [0, 1]))
    mask = b.op("OneHot", [chosen, depth, ends], one_of, i64, axis=-1)
    ordered = (groups, CHOICES * seq, experts)
    merged = b.constant(np.array([0, -1, experts], np.int64))
    order = b.op("Reshape", [mask, merged], ordered, i64)
    one = b.constant(np.array(1, np.int64))
    before = b.op("CumSum", [order, one], ordered, i64, exclusive=1)
    split = b.constant(np.array([0, CHOICES, seq, experts], np.int64))
    before = b.op("Reshape", [before, split], one_of, i64)
    last = b.constant(np.array([-1], np.int64))
    place = b.op("Mul", [before, mask], one_of, i64)
    place = b.op("ReduceSum", [place, last], by_choice, i64, keepdims=0)
    depth, ends = (
        b.constant(np.array(places, np.int64)),
        b.constant(np.array([0, 1], b.dtype)),
    )
    placed = b.op("OneHot", [place, depth, ends], (*by_choice, places), axis=-1)

    number = b.constant(np.array(1, b.dtype))
    mask = b.op("CastLike", [mask, number], one_of)
    middle = b.constant(np.array([1], np.int64))
    gates = b.op("Unsqueeze", [gates, middle], (groups, 1, seq, experts))
    weights = b.op("Mul", [gates, mask], one_of)
    both = b.constant(np.array([1, 3], np.int64))
    total = b.op("ReduceSum", [weights, both], (groups, 1, seq, 1))
    weights = b.op("Div", [weights, total], one_of)
    shape = (groups, seq, experts, places)
    dispatch, combine = (
        b.op("Einsum", [choice, placed], shape, equation="gkse,gksc->gsec")
        for choice in (mask, weights)
    )
    return dispatch, combine
