"""Generation with a cache of keys and values: one decoding step of a GPT."""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.ir import SSAValue

from distir.frontends.models.basic import LAYER
from distir.frontends.models.decoder import (
    SCOPE,
    Decoder,
    LayerBuilder,
    cache_names,
    dense_parameters,
    split_heads,
)
from distir.frontends.models.function_builder import (
    FunctionBuilder,
    Layer,
    check_sizes,
    element_type,
    layer_arguments,
    norm_parameters,
)
from distir.program import ENTRY


def build_gpt_decoding(
    layers: int,
    d_model: int,
    heads: int,
    vocab: int,
    batch: int,
    cached: int,
    dtype: str = "f32",
    *,
    tied: bool = True,
) -> ModuleOp:
    """
    Returns the decoding step of the model that `build_gpt` builds. The step computes
    the next token's logits [batch, 1, vocab] from the last token's ids [batch, 1] and
    from the keys and values of the `cached` tokens before it.

    Each layer takes the cached keys and values as inputs `transformer.h.<i>.attn.key`
    and `.value`, both [batch, heads, cached, width of a head]. The layer returns the
    key and value of the last token, [batch, heads, 1, width of a head], as results of
    the same names. The caller appends them to the cache, so a step reads the cache once
    and copies nothing. Raises DistIRError if a size is not valid.
    """
    check_sizes(layers=layers, vocab=vocab, cached=cached)
    decoder = Decoder(
        d_model, heads, 4 * d_model, batch, 1, element_type(dtype), fused=True
    )
    layer = _layer(decoder, cached)
    main = FunctionBuilder(decoder.element)
    tokens = main.argument("input_ids", (batch, 1), role="input", element=i64)
    shape = (batch, heads, cached, d_model // heads)
    names = cache_names(layers)
    caches = [main.argument(name, shape, role="input") for name in names]
    wte = main.argument("transformer.wte.weight", (vocab, d_model))
    wpe = main.argument("transformer.wpe.weight", (cached + 1, d_model))
    arguments = layer_arguments(main, SCOPE, [layer.parameters] * layers)
    norm = main.parameters("transformer", norm_parameters("ln_f", d_model))
    head = wte if tied else main.argument("lm_head.weight", (vocab, d_model))

    main.scope = "transformer.wte"
    h = main.op("Gather", [wte, tokens], decoder.hidden)
    main.scope = "transformer.wpe"
    ends = [main.constant(np.array([n])) for n in (cached, cached + 1, 0)]
    own_position = main.op("Slice", [wpe, *ends], (1, d_model))
    h = main.op("Add", [h, own_position], decoder.hidden)
    kept: list[SSAValue] = []
    for index in range(layers):
        main.scope = scope = f"{SCOPE}.{index}"
        cache = caches[2 * index : 2 * index + 2]
        h, *own = main.calls(layer.function, scope, [h, *arguments[index], *cache])
        kept += own
    main.scope = "transformer.ln_f"
    h = main.layer_norm(h, norm, decoder.hidden)
    main.scope = "lm_head"
    head = main.op("Transpose", [head], (d_model, vocab), perm=[1, 0])
    logits = main.op("MatMul", [h, head], (batch, 1, vocab))
    step = main.finish(ENTRY, [logits, *kept], ["logits", *names])
    return ModuleOp([step, layer.function])


def _layer(decoder: Decoder, cached: int) -> Layer:
    """
    Returns a layer that maps (hidden, parameters..., keys, values) to (hidden, key,
    value).
    """
    d = decoder
    layer = LayerBuilder(d, dense_parameters(d))
    shape = (d.batch, d.heads, cached, d.d_model // d.heads)
    keys, values = (
        layer.b.argument(name, shape, role=None) for name in ("keys", "values")
    )
    qkv = layer.linear("attn.c_attn", layer.norm("ln_1", layer.x), 3 * d.d_model)
    h, *layer.kept = _attention(layer.at("attn"), qkv, keys, values, shape)
    return layer.finish(LAYER, layer.mlp(layer.behind_attention(layer.x, h)))


def _attention(
    b: FunctionBuilder,
    qkv: SSAValue,
    keys: SSAValue,
    values: SSAValue,
    sizes: tuple[int, int, int, int],
) -> list[SSAValue]:
    """
    Adds attention of one token to the cached tokens and to the token itself. `qkv` is
    [batch, 1, 3 x heads x width]. Returns the result, [batch, 1, heads x width], then
    the token's key and value.
    """
    batch, heads, cached, width = sizes
    own = (batch, heads, 1, width)
    merged = (batch, 1, heads * width)
    split = b.constant(np.full(3, heads * width, np.int64))
    parts = b.ops("Split", [qkv, split], [merged] * 3, axis=2)
    q, k, v = (split_heads(b, part, (batch, 1, heads, width)) for part in parts)
    scale = b.constant(np.array(1 / math.sqrt(width), b.dtype))
    q = b.op("Mul", [q, scale], own)
    before = b.op(
        "Einsum", [q, keys], (batch, heads, 1, cached), equation="bhqw,bhkw->bhqk"
    )
    here = b.op("Einsum", [q, k], (batch, heads, 1, 1), equation="bhqw,bhkw->bhqk")
    scores = b.op("Concat", [before, here], (batch, heads, 1, cached + 1), axis=3)
    weights = b.op("Softmax", [scores], (batch, heads, 1, cached + 1), axis=-1)
    before, here = b.ops(
        "Split",
        [weights, b.constant(np.array([cached, 1]))],
        [(batch, heads, 1, cached), (batch, heads, 1, 1)],
        axis=3,
    )
    h = b.op("MatMul", [before, values], own)
    h = b.op("Add", [h, b.op("Mul", [here, v], own)], own)
    h = b.op("Transpose", [h], (batch, 1, heads, width), perm=[0, 2, 1, 3])
    return [b.op("Reshape", [h, b.constant(np.array([0, 0, -1]))], merged), k, v]
