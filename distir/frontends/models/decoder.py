"""
Builds decoders of transformer layers, from token ids to logits, and the parts of a
layer. Equal layers are calls of one function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp, UnitAttr, i64
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.dist_attributes import COUNTER
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.optimizers import STEP
from distir.errors import DistIRError
from distir.frontends.models.function_builder import (
    FunctionBuilder,
    Layer,
    Parameter,
    Shape,
    check_sizes,
    layer_arguments,
    norm_parameters,
)
from distir.frontends.models.generation import GenerationStep, LayerCache
from distir.program import ENTRY

EMBEDDING_STREAM, ATTENTION_STREAM, ATTENTION_OUTPUT_STREAM, MLP_OUTPUT_STREAM = range(
    4
)
"""The ids of the random streams of a decoder's dropouts."""

SCOPE = "transformer.h"
"""The scope of a decoder's layers."""


@dataclass(frozen=True)
class Decoder:
    """
    The settings that all layers of a decoder share.

    - `ffn`: the width between the two matrices of an MLP.
    - `dropout`: the ratio and the seed of dropout.
    - `fused`: attention is one op.
    - `cache`: each layer also returns its keys and values, [batch, heads, seq, width of
      a head].
    - `step`: the decoder is a step of generation with fused attention, and each layer
      also returns the keys and values in its cache.

    Raises DistIRError if a size is not positive or the heads do not divide the width.
    """

    d_model: int
    heads: int
    ffn: int
    batch: int
    seq: int
    element: TypeAttribute
    dropout: tuple[float, int] = (0.0, 0)
    fused: bool = False
    cache: bool = False
    step: GenerationStep | None = None

    def __post_init__(self) -> None:
        check_sizes(
            d_model=self.d_model,
            heads=self.heads,
            ffn=self.ffn,
            batch=self.batch,
            seq=self.seq,
        )
        if self.d_model % self.heads:
            raise DistIRError(
                f"{self.heads} heads do not divide the model width {self.d_model}; choose "
                "a number of heads that does"
            )
        if self.step is not None and (not self.fused or self.dropout[0]):
            raise DistIRError(
                "a step of generation has attention as one op, and no dropout; leave out "
                "dropout and --no-fused-attention"
            )

    @property
    def hidden(self) -> Shape:
        """The shape of the activations between layers: [batch, seq, d_model]."""
        return self.batch, self.seq, self.d_model

    @property
    def width(self) -> int:
        """The width of a head."""
        return self.d_model // self.heads


class LayerBuilder:
    """
    Builds the function of one transformer layer. The function maps (hidden states,
    mask, counter of calls, parameters...) to hidden states.

    The function takes no mask if attention is fused, and no counter without dropout.
    With a cache, it also returns the keys and values in `kept`. In a step of
    generation, it takes the arguments `cached` after the parameters.
    """

    def __init__(self, decoder: Decoder, parameters: Sequence[Parameter]):
        self.decoder = decoder
        self.parameters = parameters
        self.kept: list[SSAValue] = []
        self.b = b = FunctionBuilder(decoder.element, decoder.dropout)
        square = (decoder.seq, decoder.seq)
        self.x = b.argument("hidden", decoder.hidden, role=None)
        self.mask = None if decoder.fused else b.argument("mask", square, role=None)
        self.counter = None
        if b.ratio:
            self.counter = b.argument("counter", (), role=None, element=i64)
        self.p = {
            p.name: b.argument(f"{SCOPE}.*.{p.name}", p.shape) for p in parameters
        }
        self.cached = None
        if decoder.step is not None:
            sizes = decoder.heads, decoder.width
            self.cached = decoder.step.layer_arguments(b, *sizes)

    def at(self, name: str) -> FunctionBuilder:
        """
        Sets the scope of the ops that are added next to the module `name` of the layer,
        or to the layer itself if `name` is "". Returns the function's builder.
        """
        self.b.scope = f"{SCOPE}.*.{name}".rstrip(".")
        return self.b

    def linear(self, name: str, value: SSAValue, outputs: int) -> SSAValue:
        """
        Adds a linear module called `name`, and returns `value` times the module's
        weight, plus its bias. The result has `outputs` features.
        """
        b, shape = self.at(name), (*self.decoder.hidden[:2], outputs)
        product = b.op("MatMul", [value, self.p[f"{name}.weight"]], shape)
        return b.op("Add", [product, self.p[f"{name}.bias"]], shape)

    def norm(self, name: str, value: SSAValue) -> SSAValue:
        """
        Adds a layer norm over the last dimension of `value` and returns its result.
        """
        weights = [self.p[f"{name}.weight"], self.p[f"{name}.bias"]]
        return self.at(name).layer_norm(value, weights, self.decoder.hidden)

    def attention(self, x: SSAValue) -> SSAValue:
        """Adds the ops that compute x + attention(norm(x)), and returns the sum."""
        d = self.decoder
        qkv = self.linear("attn.c_attn", self.norm("ln_1", x), 3 * d.d_model)
        sizes, b = (d.batch, d.seq, d.heads, d.width), self.at("attn")
        if d.step is not None and self.cached is not None:
            h, self.kept = _cached_attention(b, qkv, d.step, self.cached, sizes)
            return self.behind_attention(x, h)
        h, *kept = _attention(b, qkv, self.mask, self.counter, sizes)
        if d.cache:
            self.kept = [split_heads(b, value, sizes) for value in kept]
        return self.behind_attention(x, h)

    def behind_attention(self, x: SSAValue, h: SSAValue) -> SSAValue:
        """
        Adds the ops that compute `x` plus the output projection of the attention result
        `h`, and returns the sum.
        """
        d = self.decoder
        h = self.linear("attn.c_proj", h, d.d_model)
        b = self.at("attn.resid_dropout")
        h = b.dropout(h, self.counter, ATTENTION_OUTPUT_STREAM)
        return self.at("").op("Add", [h, x], d.hidden)

    def mlp(self, x: SSAValue) -> SSAValue:
        """Adds the ops that compute x + mlp(norm(x)), and returns the sum."""
        d = self.decoder
        h = self.linear("mlp.c_fc", self.norm("ln_2", x), d.ffn)
        shape = (d.batch, d.seq, d.ffn)
        h = self.at("mlp.act").op("Gelu", [h], shape, approximate="tanh")
        h = self.linear("mlp.c_proj", h, d.d_model)
        h = self.at("mlp.dropout").dropout(h, self.counter, MLP_OUTPUT_STREAM)
        return self.at("").op("Add", [x, h], d.hidden)

    def finish(self, name: str, result: SSAValue) -> Layer:
        """
        Returns the layer: a function named `name` that returns `result`, and the
        parameters that a call must pass to the function.
        """
        return Layer(self.b.finish(name, [result, *self.kept]), self.parameters)


def attention_parameters(d_model: int) -> list[Parameter]:
    """
    Returns the parameters of a layer's attention and of the norms before attention and
    before the MLP.
    """
    return [
        *norm_parameters("ln_1", d_model),
        Parameter("attn.c_attn.weight", (d_model, 3 * d_model)),
        Parameter("attn.c_attn.bias", (3 * d_model,)),
        Parameter("attn.c_proj.weight", (d_model, d_model)),
        Parameter("attn.c_proj.bias", (d_model,)),
        *norm_parameters("ln_2", d_model),
    ]


def dense_parameters(decoder: Decoder) -> list[Parameter]:
    """Returns the parameters of a layer's attention and MLP."""
    d = decoder
    return [
        *attention_parameters(d.d_model),
        Parameter("mlp.c_fc.weight", (d.d_model, d.ffn)),
        Parameter("mlp.c_fc.bias", (d.ffn,)),
        Parameter("mlp.c_proj.weight", (d.ffn, d.d_model)),
        Parameter("mlp.c_proj.bias", (d.d_model,)),
    ]


def dense_layer(decoder: Decoder, name: str) -> Layer:
    """Returns a layer with attention and an MLP, as a function named `name`."""
    layer = LayerBuilder(decoder, dense_parameters(decoder))
    return layer.finish(name, layer.mlp(layer.attention(layer.x)))


def build_decoder(
    decoder: Decoder, layers: Sequence[Layer], vocab: int, tied: bool
) -> ModuleOp:
    """
    Returns the program of a decoder: embeddings of tokens and positions, `layers`, a
    final norm and the output matrix. If `tied`, the embedding of tokens is also the
    output matrix.

    In a step of generation, there is a position for each token of the cache, and the
    program returns the logits of the last token only.
    """
    check_sizes(layers=len(layers), vocab=vocab)
    d_model, seq, hidden = decoder.d_model, decoder.seq, decoder.hidden
    main = FunctionBuilder(decoder.element, decoder.dropout)
    ids, step_inputs, slots = (decoder.batch, seq), None, seq
    caches: list[list[SSAValue]] = [[]] * len(layers)
    if (generation := decoder.step) is not None:
        step_inputs, slots = generation.inputs(main), generation.sizes.cache
        tokens = step_inputs.tokens
        shared = step_inputs.shared
        own = generation.caches(main, len(layers), decoder.heads, decoder.width)
        caches = [[*shared, *cache] for cache in own]
    else:
        tokens = main.argument("input_ids", ids, role="input", element=i64)
    wte = main.argument("transformer.wte.weight", (vocab, d_model))
    wpe = main.argument("transformer.wpe.weight", (slots, d_model))
    arguments = layer_arguments(main, SCOPE, [layer.parameters for layer in layers])
    norm = main.parameters("transformer", norm_parameters("ln_f", d_model))
    head = wte if tied else main.argument("lm_head.weight", (vocab, d_model))
    step = None
    if main.ratio:
        step = main.argument(STEP, (), role="state", element=i64)
        main.attributes[-1][COUNTER] = UnitAttr()

    main.scope = "transformer"
    mask = [] if decoder.fused else [main.causal_mask(seq)]
    main.scope = "transformer.wte"
    h = main.op("Gather", [wte, tokens], hidden)
    main.scope = "transformer.wpe"
    if step_inputs is not None:
        wpe = main.op("Gather", [wpe, step_inputs.positions], hidden)
    h = main.op("Add", [h, wpe], hidden)
    main.scope = "transformer.drop"
    h = main.dropout(h, step, EMBEDDING_STREAM)
    kept: list[SSAValue] = []
    for index, layer in enumerate(layers):
        main.scope = scope = f"{SCOPE}.{index}"
        counter = []
        if step is not None:
            counter = [main.call_counter(step, len(layers), index)]
        given = [h, *mask, *counter, *arguments[index], *caches[index]]
        h, *own = main.calls(layer.function, scope, given)
        kept += own
    main.scope = "transformer.ln_f"
    if generation is not None:
        h = generation.last(main, h)
    h = main.layer_norm(h, norm, shape_of(h))
    main.scope = "lm_head"
    head = main.op("Transpose", [head], (d_model, vocab), perm=[1, 0])
    logits = main.op("MatMul", [h, head], (*shape_of(h)[:2], vocab))
    functions = list(dict.fromkeys(layer.function for layer in layers))
    if generation is not None:
        return generation.finish(main, logits, kept, functions)
    names = ["logits", *(cache_names(len(layers)) if decoder.cache else [])]
    return ModuleOp([main.finish(ENTRY, [logits, *kept], names), *functions])


def cache_names(layers: int) -> list[str]:
    """Returns the names of the keys and values of all layers, layer by layer."""
    kinds = ("key", "value")
    return [f"{SCOPE}.{i}.attn.{kind}" for i in range(layers) for kind in kinds]


def split_heads(
    b: FunctionBuilder, value: SSAValue, sizes: tuple[int, int, int, int]
) -> SSAValue:
    """Returns `value`, [batch, seq, heads x width], as [batch, heads, seq, width]."""
    batch, seq, heads, width = sizes
    by_head = b.constant(np.array([0, 0, -1, width]))
    value = b.op("Reshape", [value, by_head], sizes)
    return b.op("Transpose", [value], (batch, heads, seq, width), perm=[0, 2, 1, 3])


def _cached_attention(
    b: FunctionBuilder,
    qkv: SSAValue,
    step: GenerationStep,
    cache: LayerCache,
    sizes: tuple[int, int, int, int],
) -> tuple[SSAValue, list[SSAValue]]:
    """
    Adds self-attention of a step of generation on `qkv`, [batch, seq, 3 x heads x
    width]. `sizes` are (batch, seq, heads, width of a head). Returns the result,
    [batch, seq, heads x width], and the keys and values in the cache after the step.
    """
    batch, seq, heads, width = sizes
    merged = (batch, seq, heads * width)
    split = b.constant(np.full(3, heads * width, np.int64))
    parts = b.ops("Split", [qkv, split], [merged] * 3, axis=2)
    q, k, v = (split_heads(b, part, sizes) for part in parts)
    h, new = step.attention(b, (q, k, v), cache)
    h = b.op("Transpose", [h], sizes, perm=[0, 2, 1, 3])
    return b.op("Reshape", [h, b.constant(np.array([0, 0, -1]))], merged), new


def _attention(
    b: FunctionBuilder,
    qkv: SSAValue,
    mask: SSAValue | None,
    counter: SSAValue | None,
    sizes: tuple[int, int, int, int],
) -> list[SSAValue]:
    """
    Adds causal self-attention on `qkv`, of shape [batch, seq, 3 x heads x width].
    `sizes` are (batch, seq, heads, width of a head). Attention is one op if `mask` is
    None.

    Returns the result, the keys and the values, each [batch, seq, heads x width].
    """
    batch, seq, heads, width = sizes
    merged = (batch, seq, heads * width)
    split = b.constant(np.full(3, heads * width, np.int64))
    parts = b.ops("Split", [qkv, split], [merged] * 3, axis=2)
    if mask is None:
        attended = b.op(
            "Attention",
            parts,
            merged,
            q_num_heads=heads,
            kv_num_heads=heads,
            is_causal=1,
        )
        return [attended, *parts[1:]]
    by_head = b.constant(np.array([0, 0, -1, width]))
    q, k, v = (b.op("Reshape", [part, by_head], sizes) for part in parts)
    q = b.op("Transpose", [q], (batch, heads, seq, width), perm=[0, 2, 1, 3])
    k = b.op("Transpose", [k], (batch, heads, width, seq), perm=[0, 2, 3, 1])
    v = b.op("Transpose", [v], (batch, heads, seq, width), perm=[0, 2, 1, 3])
    square = (batch, heads, seq, seq)
    scale = b.constant(np.array(1 / math.sqrt(width), b.dtype))
    scores = b.op("Mul", [b.op("MatMul", [q, k], square), scale], square)
    scores = b.op("Add", [scores, mask], square)
    weights = b.op("Softmax", [scores], square, axis=-1)
    weights = b.dropout(weights, counter, ATTENTION_STREAM)
    h = b.op("MatMul", [weights, v], (batch, heads, seq, width))
    h = b.op("Transpose", [h], sizes, perm=[0, 2, 1, 3])
    attended = b.op("Reshape", [h, b.constant(np.array([0, 0, -1]))], merged)
    return [attended, *parts[1:]]
