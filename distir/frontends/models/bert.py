"""BERT: an encoder that predicts masked tokens of its input."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.frontends.models.function_builder import Layer, check_sizes, element_type
from distir.frontends.models.module_builder import ModuleBuilder, check_heads
from distir.program import ENTRY

_EPSILON = 1e-12


def build_bert(
    layers: int,
    d_model: int,
    heads: int,
    vocab: int,
    batch: int,
    seq: int,
    dtype: str = "f32",
    *,
    ffn: int | None = None,
    fused_attention: bool = True,
) -> ModuleOp:
    """
    Returns the forward pass of BERT with its masked language model head, from token ids
    [batch, seq] to logits [batch, seq, vocab].

    The model has learned positions, one token type, norms after attention and MLP, MLPs
    of width `ffn` (by default 4 `d_model`), and the embedding as output matrix. With
    `fused_attention` the attention of a layer is one op; without it, attention is
    written out as products and a softmax. Parameters have the names and shapes of
    Hugging Face's BertForMaskedLM, with two exceptions: there are `seq` positions
    instead of 512, and one token type instead of two. Raises DistIRError if a size is
    not positive or heads do not divide the width.
    """
    check_sizes(layers=layers, d_model=d_model, heads=heads, vocab=vocab)
    ffn = 4 * d_model if ffn is None else ffn
    check_sizes(batch=batch, seq=seq, ffn=ffn)
    check_heads(d_model, heads)
    element = element_type(dtype)
    layer = _layer(element, (batch, seq, d_model), heads, ffn, fused_attention)

    main = ModuleBuilder(element)
    ids = main.argument("input_ids", (batch, seq), role="input", element=i64)
    embeddings = "bert.embeddings"
    h = main.embedding(f"{embeddings}.word_embeddings", ids, vocab, d_model)
    [embedding] = main.block.args[1:]
    for name, rows in (("token_type", 1), ("position", seq)):
        weight = f"{embeddings}.{name}_embeddings"
        b = main.at(weight)
        h = b.elementwise("Add", h, b.parameter(f"{weight}.weight", (rows, d_model)))
    h = main.norm(f"{embeddings}.LayerNorm", h, _EPSILON)
    calls = [(f"bert.encoder.layer.{index}", layer) for index in range(layers)]
    h = main.stack(calls, h)
    logits = _head(main, h, embedding)
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), layer.function])


def _layer(
    element: TypeAttribute, hidden: tuple[int, int, int], heads: int, ffn: int,
    fused: bool,
) -> Layer:  # fmt: skip
    """
    Returns a BERT layer: attention, as one op if `fused`, and an MLP, each with a
    residual branch and a norm after it.
    """
    width = hidden[-1]
    b = ModuleBuilder(element, "bert.encoder.layer.*")
    x = b.argument("hidden", hidden, role=None)
    q, k, v = (
        b.linear(f"attention.self.{name}", x, width)
        for name in ("query", "key", "value")
    )
    b.at("attention.self")
    q, k, v = (b.heads(part, width // heads) for part in (q, k, v))
    if fused:
        h = b.attention(q, k, v)
    else:
        scale = b.constant(np.array((width // heads) ** -0.5, b.dtype))
        h = b.attention_written_out(b.elementwise("Mul", q, scale), k, v)
    h = b.merge_heads(h)
    h = b.linear("attention.output.dense", h, width)
    h = b.at("attention.output").elementwise("Add", h, x)
    x = b.norm("attention.output.LayerNorm", h, _EPSILON)
    h = b.linear("intermediate.dense", x, ffn)
    h = b.at("intermediate.intermediate_act_fn").elementwise("Gelu", h)
    h = b.linear("output.dense", h, width)
    h = b.at("output").elementwise("Add", h, x)
    return b.layer("layer", b.norm("output.LayerNorm", h, _EPSILON))


def _head(main: ModuleBuilder, h: SSAValue, embedding: SSAValue) -> SSAValue:
    """
    Adds the language model head to `main`. Returns the logits of the tokens, computed
    from the hidden states `h`.
    """
    vocab, width = shape_of(embedding)
    name = "cls.predictions"
    h = main.linear(f"{name}.transform.dense", h, width)
    h = main.at(f"{name}.transform.transform_act_fn").elementwise("Gelu", h)
    h = main.norm(f"{name}.transform.LayerNorm", h, _EPSILON)
    b = main.at(f"{name}.decoder")
    h = b.product(h, embedding)
    return b.elementwise("Add", h, b.parameter(f"{name}.bias", (vocab,)))
