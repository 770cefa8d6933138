"""
LLaMA: a decoder with grouped queries, rotary positions, RMS norm and SwiGLU; with experts
it is Mixtral.
"""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import ModuleOp, f32, i64
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedProductOp,
)
from distir.errors import DistIRError
from distir.frontends.models.function_builder import Layer, check_sizes, element_type
from distir.frontends.models.module_builder import ModuleBuilder
from distir.program import ENTRY

_EPSILON = 1e-5


def build_llama(
    layers: int,
    d_model: int,
    heads: int,
    vocab: int,
    batch: int,
    seq: int,
    dtype: str = "f32",
    *,
    kv_heads: int | None = None,
    ffn: int | None = None,
    theta: float = 10000.0,
    tied: bool = False,
    head_dim: int | None = None,
    experts: int = 0,
    top_k: int = 2,
) -> ModuleOp:
    """
    Returns the forward pass of LLaMA from token ids [batch, seq] to logits [batch, seq,
    vocab]. Parameters have the names and shapes of Hugging Face's LlamaForCausalLM.
    Raises DistIRError if the options do not fit together.

    - `kv_heads`: the number of heads of keys and values; by default that of queries;
    - `ffn`: the width inside an MLP; by default 8/3 `d_model`, rounded up to a multiple
      of 256;
    - `theta`: the base of the wavelengths of the rotary positions;
    - `tied`: whether the embedding is also the output matrix;
    - `head_dim`: the width of a head; by default the heads divide `d_model`;
    - `experts`: the number of experts in place of each MLP, or 0 for MLPs; the model is
      then Mixtral, with the names of Hugging Face's MixtralForCausalLM. No token is
      dropped;
    - `top_k`: the number of experts to which each token goes.
    """
    groups = kv_heads or heads
    ffn = ffn or math.ceil(8 * d_model / 3 / 256) * 256
    check_sizes(
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=groups,
        ffn=ffn,
        vocab=vocab,
    )
    check_sizes(batch=batch, seq=seq)
    width = head_dim or d_model // heads
    if (not head_dim and d_model % heads) or width % 2 or heads % groups:
        raise DistIRError(
            f"a width of {d_model} with {heads} heads of queries and {groups} of keys and "
            "values: heads must divide the width into even parts, and groups the heads"
        )
    if experts and not 1 <= top_k <= experts:
        raise DistIRError(
            f"each token goes to {top_k} experts, but the model has {experts}; choose "
            f"from 1 to {experts}"
        )
    element = element_type(dtype)
    mixture = (experts, top_k)
    hidden = (batch, seq, d_model)
    layer = _layer(element, hidden, (heads, groups, width), ffn, mixture)

    main = ModuleBuilder(element, "")
    ids = main.argument("input_ids", (batch, seq), role="input", element=i64)
    h = main.embedding("model.embed_tokens", ids, vocab, d_model)
    [embedding] = main.block.args[1:]
    tables = _rotary_tables(main, seq, width, theta)
    calls = [(f"model.layers.{index}", layer) for index in range(layers)]
    h = main.rms_norm("model.norm", main.stack(calls, h, *tables), _EPSILON)
    if tied:
        logits = main.at("lm_head").product(h, embedding)
    else:
        logits = main.linear("lm_head", h, vocab, bias=False)
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), layer.function])


def _layer(
    element: TypeAttribute,
    hidden: tuple[int, int, int],
    attention: tuple[int, int, int],
    ffn: int,
    mixture: tuple[int, int],
) -> Layer:
    """
    Returns a LLaMA layer: attention and an MLP, each after a norm and with a residual
    branch. `attention` are the numbers of heads of queries and of keys, and their width;
    `mixture` is the number of experts, or 0 for a plain MLP, and the number of
    experts to which each token goes.
    """
    _, seq, d_model = hidden
    heads, groups, width = attention
    b = ModuleBuilder(element, "model.layers.*")
    x = b.argument("hidden", hidden, role=None)
    tables = [b.argument(n, (seq, width), role=None) for n in ("cos", "sin")]
    h = b.rms_norm("input_layernorm", x, _EPSILON)
    q, k, v = (
        b.linear(f"self_attn.{name}_proj", h, count * width, bias=False)
        for name, count in (("q", heads), ("k", groups), ("v", groups))
    )
    b.at("self_attn")
    q, k = (_rotated(b, part, width, tables) for part in (q, k))
    h = b.attention(q, k, b.heads(v, width), causal=True)
    h = b.merge_heads(h)
    h = b.linear("self_attn.o_proj", h, d_model, bias=False)
    x = b.at().elementwise("Add", x, h)

    h = b.rms_norm("post_attention_layernorm", x, _EPSILON)
    if mixture[0]:
        h = _experts(b, h, ffn, *mixture)
        return b.layer("layer", b.at().elementwise("Add", x, h))
    gate = b.linear("mlp.gate_proj", h, ffn, bias=False)
    gate = b.at("mlp.act_fn").elementwise("Swish", gate)
    up = b.linear("mlp.up_proj", h, ffn, bias=False)
    h = b.at("mlp").elementwise("Mul", gate, up)
    h = b.linear("mlp.down_proj", h, d_model, bias=False)
    return b.layer("layer", b.at().elementwise("Add", x, h))


def _experts(
    b: ModuleBuilder, x: SSAValue, ffn: int, experts: int, top_k: int
) -> SSAValue:
    """
    Returns the mixture of `experts` SwiGLU MLPs of width `ffn` on `x`, [batch, seq,
    d_model]. Each token goes to the `top_k` experts with the largest gates, whose
    weights add up to 1; no expert has a limit of tokens.
    """
    batch, seq, d_model = shape_of(x)
    tokens = batch * seq
    b.at("mlp")
    x = b.op("Reshape", [x, b.integers(-1, d_model)], (tokens, d_model))
    gates = b.linear("mlp.gate", x, experts, bias=False)
    b.at("mlp.gate")
    gates = b.op("Cast", [gates], (tokens, experts), f32, to=1)
    gates = b.op("Softmax", [gates], (tokens, experts), f32, axis=-1)
    chosen: list[tuple[tuple[int, ...], TypeAttribute | None]]
    chosen = [((tokens, top_k), f32), ((tokens, top_k), i64)]
    weights, ids = b.results("TopK", [gates, b.integers(top_k)], chosen, axis=-1)
    total = b.op("ReduceSum", [weights, b.integers(-1)], (tokens, 1), f32, keepdims=1)
    weights = b.op("Div", [weights, total], (tokens, top_k), f32)

    b.at("mlp.experts")
    shape = (tokens, 1, top_k)
    target = b.integers(-1, 1, top_k)  # holds for a part of the batch too
    ids = b.op("Reshape", [ids, target], shape, i64)
    weights = b.op("Reshape", [weights, target], shape, f32)
    places = ExpertPlacesOp(
        ids,
        experts=experts,
        capacity=1,
        slots=b.type(shape, i64),
        rows=b.type((1, tokens, top_k), i64),
    )
    slots, rows = b.add(places)
    outside = (tokens, 1, d_model)
    x = b.op("Reshape", [x, b.integers(-1, 1, d_model)], outside)
    inside = (1, tokens, top_k, d_model)
    [h] = b.add(DispatchOp(x, slots, rows, None, result=b.type(inside)))

    def product(h: SSAValue, name: str, inputs: int, outputs: int) -> SSAValue:
        matrices = b.parameter(f"mlp.experts.{name}", (experts, outputs, inputs))
        result = b.type((1, tokens, top_k, outputs))
        op = GroupedProductOp(
            h, rows, matrices, transposed=True, taken=top_k, result=result
        )
        [h] = b.add(op)
        return h

    h = product(h, "gate_up_proj", d_model, 2 * ffn)
    half = (1, tokens, top_k, ffn)
    gate, up = b.ops("Split", [h, b.integers(ffn, ffn)], [half, half], axis=3)
    gate = b.at("mlp.experts.act_fn").elementwise("Swish", gate)
    h = b.at("mlp.experts").elementwise("Mul", gate, up)
    h = product(h, "down_proj", ffn, d_model)
    h = b.op("Cast", [h], inside, f32, to=1)
    [h] = b.add(CombineOp(h, slots, rows, weights, result=b.type(outside, f32)))
    h = b.op("CastLike", [h, b.constant(np.array(0, b.dtype))], outside)
    b.at("mlp")
    return b.op("Reshape", [h, b.integers(-1, seq, d_model)], (batch, seq, d_model))


def _rotary_tables(
    b: ModuleBuilder, seq: int, width: int, theta: float
) -> list[SSAValue]:
    """
    Adds the tables of cosines and sines, each [seq, width], of the angles position x
    theta^(-2i / width). Both halves of a head's width are equal.
    """
    b.at("model.rotary_emb")
    frequencies = theta ** -(np.arange(0, width, 2) / width)
    # Positions do not fit into the digits of 16 bits.
    frequency = b.single(frequencies)
    ends = [b.single(number) for number in (0, seq, 1)]
    positions = b.op("Range", ends, (seq,), f32)
    positions = b.op("Unsqueeze", [positions, b.integers(1)], (seq, 1), f32)
    angles = b.op("Mul", [positions, frequency], (seq, width // 2), f32)
    shape = (seq, width)
    angles = b.op("Concat", [angles, angles], shape, f32, axis=-1)
    tables = [b.op(name, [angles], shape, f32) for name in ("Cos", "Sin")]
    if b.element == f32:
        return tables
    like = b.constant(np.array(0, b.dtype))
    return [b.op("CastLike", [table, like], shape) for table in tables]


def _rotated(
    b: ModuleBuilder, value: SSAValue, width: int, tables: list[SSAValue]
) -> SSAValue:
    """
    Returns `value`, [batch, seq, heads x width], as [batch, heads, seq, width], rotated
    by position.
    """
    cos, sin = tables
    value = b.heads(value, width)
    shape = shape_of(value)
    half = (*shape[:-1], width // 2)
    halves = b.integers(width // 2, width // 2)
    first, second = b.ops("Split", [value, halves], [half, half], axis=3)
    turned = [b.elementwise("Neg", second), first]
    other = b.op("Concat", turned, shape, axis=-1)
    return b.elementwise(
        "Add", b.elementwise("Mul", value, cos), b.elementwise("Mul", other, sin)
    )
