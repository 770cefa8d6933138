"""T5: an encoder and a decoder with relative positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.frontends.models.function_builder import Layer, check_sizes, element_type
from distir.frontends.models.module_builder import ModuleBuilder, check_heads
from distir.program import ENTRY

_EPSILON = 1e-6
_BUCKETS = 32
"""The number of ranges of distances for which a bias is learned."""

_FARTHEST = 128
"""The distance in tokens from which on all distances share one bias."""

Hidden = tuple[int, int, int]

Heads = tuple[int, int]
"""The number of heads and the width of a head."""


def build_t5(
    layers: int,
    d_model: int,
    heads: int,
    vocab: int,
    batch: int,
    seq: int,
    dtype: str = "f32",
    *,
    target_seq: int | None = None,
    ffn: int | None = None,
    head_dim: int | None = None,
) -> ModuleOp:
    """
    Returns the forward pass of T5 from token ids [batch, seq] and the ids of the target
    tokens so far [batch, target_seq] to logits [batch, target_seq, vocab]. `target_seq`
    is `seq` by default.

    The encoder and the decoder have `layers` layers each, with RMS norms, attention
    with a learned bias per distance, and MLPs with ReLU of width `ffn` (by default 4
    `d_model`). A head has the width `head_dim` (Hugging Face's d_kv), by default
    `d_model` / `heads`. Attention is written out as products and a softmax, because its
    bias is learned. Parameters have the names and shapes of Hugging Face's
    T5ForConditionalGeneration. Raises DistIRError if a size is not valid.
    """
    ffn, target_seq = ffn or 4 * d_model, target_seq or seq
    check_sizes(layers=layers, d_model=d_model, heads=heads, ffn=ffn, vocab=vocab)
    check_sizes(batch=batch, seq=seq, target_seq=target_seq)
    if head_dim is None:
        check_heads(d_model, heads)
        head_dim = d_model // heads
    check_sizes(head_dim=head_dim)
    element, shape = element_type(dtype), (heads, head_dim)
    source, target = (batch, seq, d_model), (batch, target_seq, d_model)
    encoder_layer = _encoder_layer(element, source, shape, ffn)
    decoder_layer = _decoder_layer(element, source, target, shape, ffn)

    main = ModuleBuilder(element)
    ids = [
        main.argument(name, shape[:2], role="input", element=i64)
        for name, shape in (("input_ids", source), ("decoder_input_ids", target))
    ]
    embedding = main.at("shared").parameter("shared.weight", (vocab, d_model))
    h = main.at("encoder.embed_tokens").rows(embedding, ids[0])
    bias = _bias(main, "encoder", seq, heads, causal=False)
    calls = [(f"encoder.block.{index}", encoder_layer) for index in range(layers)]
    h = main.stack(calls, h, bias)
    encoded = main.rms_norm("encoder.final_layer_norm", h, _EPSILON)

    h = main.at("decoder.embed_tokens").rows(embedding, ids[1])
    bias = _bias(main, "decoder", target_seq, heads, causal=True)
    calls = [(f"decoder.block.{index}", decoder_layer) for index in range(layers)]
    h = main.stack(calls, h, bias, encoded)
    h = main.rms_norm("decoder.final_layer_norm", h, _EPSILON)
    scale = main.at().constant(np.array(d_model**-0.5, main.dtype))
    h = main.elementwise("Mul", h, scale)
    logits = main.at("lm_head").product(h, embedding)
    functions = [encoder_layer.function, decoder_layer.function]
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), *functions])


def _encoder_layer(
    element: TypeAttribute, hidden: Hidden, heads: Heads, ffn: int
) -> Layer:
    """
    Returns an encoder layer: attention and an MLP, each after a norm and with a
    residual branch.
    """
    b = ModuleBuilder(element, "encoder.block.*")
    x = b.argument("hidden", hidden, role=None)
    bias = _bias_argument(b, hidden, heads)
    x = _attention(b, "layer.0", "SelfAttention", x, None, bias, heads)
    return b.layer("encoder_layer", _mlp(b, "layer.1", x, ffn))


def _decoder_layer(
    element: TypeAttribute, source: Hidden, hidden: Hidden, heads: Heads, ffn: int
) -> Layer:
    """
    Returns a decoder layer: attention to the target tokens so far, attention to the
    encoder's output, and an MLP.
    """
    b = ModuleBuilder(element, "decoder.block.*")
    x = b.argument("hidden", hidden, role=None)
    bias = _bias_argument(b, hidden, heads)
    encoded = b.argument("encoded", source, role=None)
    x = _attention(b, "layer.0", "SelfAttention", x, None, bias, heads)
    x = _attention(b, "layer.1", "EncDecAttention", x, encoded, None, heads)
    return b.layer("decoder_layer", _mlp(b, "layer.2", x, ffn))


def _bias_argument(b: ModuleBuilder, hidden: Hidden, heads: Heads) -> SSAValue:
    """Adds an argument to a layer: the bias of the attention scores."""
    return b.argument("position_bias", (heads[0], hidden[1], hidden[1]), role=None)


def _attention(
    b: ModuleBuilder,
    name: str,
    kind: str,
    x: SSAValue,
    encoded: SSAValue | None,
    bias: SSAValue | None,
    heads: Heads,
) -> SSAValue:
    """
    Returns `x` plus the attention of norm(x) to itself, or to the encoder's output
    `encoded` if given. The products of queries and keys are not scaled.
    """
    count, width = heads
    h = b.rms_norm(f"{name}.layer_norm", x, _EPSILON)
    seen = h if encoded is None else encoded
    q, k, v = (
        b.linear(f"{name}.{kind}.{part}", value, count * width, bias=False)
        for part, value in (("q", h), ("k", seen), ("v", seen))
    )
    b.at(f"{name}.{kind}")
    q, k, v = (b.heads(part, width) for part in (q, k, v))
    h = b.merge_heads(b.attention_written_out(q, k, v, bias))
    h = b.linear(f"{name}.{kind}.o", h, shape_of(x)[-1], bias=False)
    return b.at(name).elementwise("Add", x, h)


def _mlp(b: ModuleBuilder, name: str, x: SSAValue, ffn: int) -> SSAValue:
    """Returns `x` plus an MLP of norm(x)."""
    h = b.rms_norm(f"{name}.layer_norm", x, _EPSILON)
    h = b.linear(f"{name}.DenseReluDense.wi", h, ffn, bias=False)
    h = b.at(f"{name}.DenseReluDense.act").elementwise("Relu", h)
    h = b.linear(f"{name}.DenseReluDense.wo", h, shape_of(x)[-1], bias=False)
    return b.at(name).elementwise("Add", x, h)


def _bias(
    main: ModuleBuilder, name: str, seq: int, heads: int, causal: bool
) -> SSAValue:
    """
    Returns the bias of attention scores, [heads, seq, seq]: a learned number for the
    distance of query and key. If `causal`, keys after the query get the lowest finite
    number in addition.
    """
    attention = f"{name}.block.0.layer.0.SelfAttention"
    weight = f"{attention}.relative_attention_bias.weight"
    table = main.at(attention).parameter(weight, (_BUCKETS, heads))
    square = (seq, seq)
    ends = [main.constant(np.array(v, np.int64)) for v in (0, seq, 1)]
    keys = main.op("Range", ends, (seq,), i64)
    queries = main.op("Unsqueeze", [keys, main.integers(1)], (seq, 1), i64)
    distances = main.op("Sub", [keys, queries], square, i64)
    # The first of the kinds is that of the farthest key before a query.
    first = main.constant(np.array(seq - 1, np.int64))
    distances = main.op("Add", [distances, first], square, i64)
    kinds = main.integers(*_kinds(range(1 - seq, seq), causal))
    kinds = main.op("Gather", [kinds, distances], square, i64, axis=0)
    bias = main.transpose(main.rows(table, kinds), 2, 0, 1)
    if not causal:
        return bias
    return main.elementwise("Add", bias, main.causal_mask(seq))


def _kinds(distances: Sequence[int], causal: bool) -> list[int]:
    """
    Returns the index of the learned bias for each distance from a query to a key. Half
    of the indices stand for single distances, the other half for ranges of distances
    that get wider and wider. A decoder (`causal`) uses all indices for keys before the
    query; an encoder uses half of the indices for keys after the query.
    """
    kinds = _BUCKETS if causal else _BUCKETS // 2
    exact = kinds // 2
    found: list[int] = []
    for distance in distances:
        ahead = distance > 0
        size = max(-distance, 0) if causal else abs(distance)
        if size < exact:
            kind = size
        else:
            ratio = math.log(size / exact) / math.log(_FARTHEST / exact)
            kind = min(exact + int(ratio * (kinds - exact)), kinds - 1)
        found.append(kind + (kinds if ahead and not causal else 0))
    return found
