"""
Builders of sequential programs of any size, without weights: the MLP and GPT-2 of
DistIR's Table 1 and GShard's mixtures of experts.

A layer is one function, which `@main` calls once per layer, so the program does not
grow with the number of layers. The ops in the function of a layer have scopes such as
`transformer.h.*.attn`, and the calls of the function have scopes such as
`transformer.h.0`, as after the pass `outline-repeats`.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models.decoder import Decoder, build_decoder, dense_layer
from distir.frontends.models.experts import expert_layer
from distir.frontends.models.function_builder import (
    FunctionBuilder,
    Parameter,
    check_sizes,
    element_type,
    layer_arguments,
)
from distir.frontends.models.generation import GenerationStep
from distir.program import ENTRY

LAYER = "layer"
"""The name of the function of one layer."""

EXPERT_LAYER = "expert_layer"
"""The name of the function of one layer with experts."""


def build_mlp(layers: int, d_model: int, batch: int, dtype: str = "f32") -> ModuleOp:
    """
    Returns a program of `layers` fully connected layers with ReLU, each of `d_model`
    units, on `batch` samples. The weights have the shape [inputs, outputs]. Raises
    DistIRError if a size is not positive.
    """
    check_sizes(layers=layers, d_model=d_model, batch=batch)
    element = element_type(dtype)
    parameters = [
        Parameter("weight", (d_model, d_model)),
        Parameter("bias", (d_model,)),
    ]

    layer = FunctionBuilder(element)
    x = layer.argument("input", (batch, d_model), role=None)
    weight, bias = (layer.argument(f"layers.*.{p.name}", p.shape) for p in parameters)
    layer.scope = "layers.*"
    h = layer.op("Gemm", [x, weight, bias], (batch, d_model))
    layer_function = layer.finish(LAYER, [layer.op("Relu", [h], (batch, d_model))])

    main = FunctionBuilder(element)
    h = main.argument("input", (batch, d_model), role="input")
    arguments = layer_arguments(main, "layers", [parameters] * layers)
    for index in range(layers):
        h = main.call(layer_function, f"layers.{index}", [h, *arguments[index]])
    return ModuleOp([main.finish(ENTRY, [h], ["output"]), layer_function])


def build_gpt(
    layers: int,
    d_model: int,
    heads: int,
    vocab: int,
    batch: int,
    seq: int,
    dtype: str = "f32",
    *,
    ffn: int | None = None,
    tied: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
    fused_attention: bool = True,
    cache: bool = False,
    step: GenerationStep | None = None,
) -> ModuleOp:
    """
    Returns the forward pass of GPT-2 from token ids [batch, seq] to logits [batch, seq,
    vocab].

    The model has learned positions, a layer norm before attention and before the MLP,
    one matrix for query, key and value, causal attention and GELU. Parameters have the
    names of Hugging Face's GPT-2. Raises DistIRError if an option is out of range.

    - `ffn`: the width inside an MLP, by default 4 `d_model`;
    - `tied`: the embedding is also the output matrix;
    - `dropout`: the fraction of elements that is set to zero, with random numbers from
      `seed`, in the embeddings, the attention probabilities and both residual branches
      of a layer; the program then takes the number of previous steps as its last
      argument;
    - `fused_attention`: the attention of a layer is one op, unless there is dropout; if
      not, it is written out as products and a softmax (`differentiate` then makes one
      op of attention with dropout);
    - `cache`: each layer's keys and values, [batch, heads, seq, width of a head], are
      additional results, named `transformer.h.<i>.attn.key` and `.value`, from which
      `build_gpt_decoding` continues;
    - `step`: the step of generation to build instead (see `build_serving`), from `seq`
      token ids to the logits of the last one; without dropout, and with fused
      attention.
    """
    check_sizes(layers=layers)
    if not 0 <= dropout < 1 or not 0 <= seed < 2**32:
        raise DistIRError(
            f"dropout is {dropout} and its seed {seed}; expected a ratio of at least 0 "
            f"and less than 1, and a seed of 32 bits"
        )
    decoder = Decoder(
        d_model,
        heads,
        4 * d_model if ffn is None else ffn,
        batch,
        seq,
        element_type(dtype),
        (dropout, seed),
        fused_attention and not dropout,
        cache,
        step,
    )
    return build_decoder(decoder, [dense_layer(decoder, LAYER)] * layers, vocab, tied)


def build_moe(
    layers: int,
    d_model: int,
    heads: int,
    experts: int,
    vocab: int,
    batch: int,
    seq: int,
    dtype: str = "f32",
    *,
    ffn: int | None = None,
    capacity_factor: float = 1.0,
    tied: bool = True,
    fused_attention: bool = True,
    step: GenerationStep | None = None,
) -> ModuleOp:
    """
    Returns the forward pass of a transformer with GShard's mixtures of experts, from
    token ids [batch, seq] to logits [batch, seq, vocab].

    The layers are those of `build_gpt`, except that every second layer has `experts`
    MLPs instead of one. Each token goes to its best two experts. `ffn` is the width
    inside an MLP, by default 4 `d_model`; `tied`, `fused_attention` and `step` are as
    in `build_gpt`. Raises DistIRError if an option is out of range.

    Each sequence is one of GShard's groups. An expert takes at most `2 seq / experts`
    times `capacity_factor` (rounded up) tokens of a group, first choices before second
    choices. The remaining tokens bypass the expert on the residual branch. Two parts of
    GShard are left out: the random choice of the second expert, and the auxiliary loss
    that balances the experts' loads. In a step of generation an expert takes all tokens
    that choose it, because the result for a token must not depend on other tokens.
    """
    check_sizes(layers=layers, experts=experts)
    decoder = Decoder(
        d_model,
        heads,
        4 * d_model if ffn is None else ffn,
        batch,
        seq,
        element_type(dtype),
        fused=fused_attention,
        step=step,
    )
    kinds = [
        dense_layer(decoder, LAYER),
        expert_layer(decoder, experts, capacity_factor, EXPERT_LAYER),
    ]
    chosen = [kinds[index % 2] for index in range(layers)]
    return build_decoder(decoder, chosen, vocab, tied)
