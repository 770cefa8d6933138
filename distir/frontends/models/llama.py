"""
LLaMA: a decoder with grouped queries, rotary positions, RMS norm and SwiGLU. With
experts, the model is Mixtral.
"""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import ModuleOp, f32, i64
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.function_builder import Layer, check_sizes, element_type
from distir.frontends.models.generation import GenerationStep, LayerCache, StepInputs
from distir.frontends.models.module_builder import ModuleBuilder
from distir.frontends.models.swiglu import swiglu_mixture, swiglu_mlp
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
    step: GenerationStep | None = None,
) -> ModuleOp:
    """
    Returns the forward pass of LLaMA from token ids [batch, seq] to logits [batch, seq,
    vocab]. Parameters have the names and shapes of Hugging Face's LlamaForCausalLM.
    Raises DistIRError if an option is out of range or if the options contradict each
    other.

    - `kv_heads`: the number of heads of keys and values; by default the number of query
      heads;
    - `ffn`: the width inside an MLP; by default 8/3 `d_model`, rounded up to a multiple
      of 256;
    - `theta`: the base of the wavelengths of the rotary positions;
    - `tied`: whether the embedding is also the output matrix;
    - `head_dim`: the width of a head; by default the heads divide `d_model`;
    - `experts`: the number of experts in place of each MLP, or 0 for MLPs; with experts,
      the model is Mixtral, with the names of Hugging Face's MixtralForCausalLM. No token
      is dropped;
    - `top_k`: the number of experts to which each token goes;
    - `step`: the step of generation to build instead (see `build_serving`), from `seq`
      token ids to the logits of the last one.
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
    hidden = (batch, seq, d_model)
    sizes = (heads, groups, width)
    layer = _layer(element, hidden, sizes, ffn, (experts, top_k), step)

    main = ModuleBuilder(element, "")
    inputs = None if step is None else step.inputs(main)
    shared: list[SSAValue] = []
    caches: list[list[SSAValue]] = [[]] * layers
    if step is not None and inputs is not None:
        ids, shared = inputs.tokens, inputs.shared
        caches = step.caches(main, layers, groups, width)
    else:
        ids = main.argument("input_ids", (batch, seq), role="input", element=i64)
    h = main.embedding("model.embed_tokens", ids, vocab, d_model)
    embedding = main.block.args[-1]
    shared = [*_rotary_tables(main, seq, width, theta, inputs), *shared]
    new: list[SSAValue] = []
    for index, cache in enumerate(caches):
        scope = f"model.layers.{index}"
        own = main.parameters(scope, layer.parameters)
        h, *kept = main.calls(layer.function, scope, [h, *shared, *cache, *own])
        new += kept
    if step is not None:
        h = step.last(main.at("model"), h)
    h = main.rms_norm("model.norm", h, _EPSILON)
    if tied:
        logits = main.at("lm_head").product(h, embedding)
    else:
        logits = main.linear("lm_head", h, vocab, bias=False)
    if step is not None:
        return step.finish(main, logits, new, [layer.function])
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), layer.function])


def _layer(
    element: TypeAttribute,
    hidden: tuple[int, int, int],
    attention: tuple[int, int, int],
    ffn: int,
    routes: tuple[int, int],
    step: GenerationStep | None,
) -> Layer:
    """
    Returns a LLaMA layer: attention and an MLP, each after a norm and with a residual
    branch. In a step of generation, the layer also takes and returns its cached keys
    and values.

    - `attention`: the number of query heads, the number of key heads, and the width of
      a head;
    - `routes`: the number of experts, or 0 for a plain MLP, and the number of experts
      to which each token goes.
    """
    batch, seq, d_model = hidden
    heads, groups, width = attention
    b = ModuleBuilder(element, "model.layers.*")
    x = b.argument("hidden", hidden, role=None)
    table = (seq, width) if step is None else (batch, 1, seq, width)
    tables = [b.argument(n, table, role=None) for n in ("cos", "sin")]
    cache: LayerCache | None = None
    if step is not None:
        cache = step.layer_arguments(b, groups, width)
    h = b.rms_norm("input_layernorm", x, _EPSILON)
    q, k, v = (
        b.linear(f"self_attn.{name}_proj", h, count * width, bias=False)
        for name, count in (("q", heads), ("k", groups), ("v", groups))
    )
    b.at("self_attn")
    q, k = (_rotated(b, part, width, tables) for part in (q, k))
    v, new = b.heads(v, width), list[SSAValue]()
    if step is not None and cache is not None:
        h, new = step.attention(b, (q, k, v), cache)
    else:
        h = b.attention(q, k, v, causal=True)
    h = b.merge_heads(h)
    h = b.linear("self_attn.o_proj", h, d_model, bias=False)
    x = b.at().elementwise("Add", x, h)

    h = b.rms_norm("post_attention_layernorm", x, _EPSILON)
    if routes[0]:
        h = swiglu_mixture(b, h, ffn, *routes)
        out = b.at().elementwise("Add", x, h)
        return Layer(b.finish("layer", [out, *new]), b.own)
    h = swiglu_mlp(b, "mlp", h, ffn)
    out = b.at().elementwise("Add", x, h)
    return Layer(b.finish("layer", [out, *new]), b.own)


def _rotary_tables(
    b: ModuleBuilder,
    seq: int,
    width: int,
    theta: float,
    inputs: StepInputs | None,
) -> list[SSAValue]:
    """
    Adds the tables of cosines and sines of the angles position x theta^(-2i / width),
    and returns them. Each table is [seq, width], or [batch, 1, seq, width] for the
    positions of a step of generation. The two halves of the width have equal numbers.
    """
    b.at("model.rotary_emb")
    frequencies = theta ** -(np.arange(0, width, 2) / width)
    # Positions do not fit into the digits of 16 bits.
    frequency = b.single(frequencies)
    if inputs is None:
        ends = [b.single(number) for number in (0, seq, 1)]
        positions = b.op("Range", ends, (seq,), f32)
        positions = b.op("Unsqueeze", [positions, b.integers(1)], (seq, 1), f32)
    else:
        rows = shape_of(inputs.positions)
        positions = b.op("Cast", [inputs.positions], rows, f32, to=1)
        shape = (rows[0], 1, seq, 1)
        positions = b.op("Unsqueeze", [positions, b.integers(1, 3)], shape, f32)
    outer = shape_of(positions)[:-1]
    angles = b.op("Mul", [positions, frequency], (*outer, width // 2), f32)
    shape = (*outer, width)
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
