"""LLaMA: a decoder with grouped queries, rotary positions, RMS norm and SwiGLU."""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import ModuleOp, f32, i64
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
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
) -> ModuleOp:
    """
    Returns the forward pass of LLaMA from token ids [batch, seq] to logits [batch, seq,
    vocab]. Parameters have the names and shapes of Hugging Face's LlamaForCausalLM.
    Raises DistIRError if the options do not fit together.

    - `kv_heads`: the number of heads of keys and values; by default that of queries;
    - `ffn`: the width inside an MLP; by default 8/3 `d_model`, rounded up to a multiple
      of 256;
    - `theta`: the base of the wavelengths of the rotary positions;
    - `tied`: whether the embedding is also the output matrix.
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
    if d_model % heads or d_model // heads % 2 or heads % groups:
        raise DistIRError(
            f"a width of {d_model} with {heads} heads of queries and {groups} of keys and "
            "values: heads must divide the width into even parts, and groups the heads"
        )
    element = element_type(dtype)
    layer = _layer(element, (batch, seq, d_model), heads, groups, ffn)

    main = ModuleBuilder(element, "")
    ids = main.argument("input_ids", (batch, seq), role="input", element=i64)
    h = main.embedding("model.embed_tokens", ids, vocab, d_model)
    [embedding] = main.block.args[1:]
    tables = _rotary_tables(main, seq, d_model // heads, theta)
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
    heads: int,
    groups: int,
    ffn: int,
) -> Layer:
    """
    Returns a LLaMA layer: attention and an MLP, each after a norm and with a residual
    branch.
    """
    _, seq, d_model = hidden
    width = d_model // heads
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
    gate = b.linear("mlp.gate_proj", h, ffn, bias=False)
    gate = b.at("mlp.act_fn").elementwise("Swish", gate)
    up = b.linear("mlp.up_proj", h, ffn, bias=False)
    h = b.at("mlp").elementwise("Mul", gate, up)
    h = b.linear("mlp.down_proj", h, d_model, bias=False)
    return b.layer("layer", b.at().elementwise("Add", x, h))


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
