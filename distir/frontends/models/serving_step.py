"""
Builds inference steps of decoders of any size, for the simulation of a service.

The program of a step has the costs of a real step: matrix products, attention over a
cache of keys and values, and communication. It leaves out work that engines fuse into
these ops, such as rotating queries and keys by their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedProductOp,
)
from distir.dialects.train_ops.quantized_weights import EIGHT_BITS
from distir.errors import DistIRError
from distir.frontends.models.function_builder import Layer, check_sizes, element_type
from distir.frontends.models.latent_attention import LatentSizes, latent_attention
from distir.frontends.models.step_builder import (
    PLAIN,
    StepBuilder,
    StepFormats,
    cache_names,
)
from distir.program import ENTRY

_EPSILON = 1e-5
_ROOT = "model.layers.*"


@dataclass(frozen=True)
class DecoderSizes:
    """
    The sizes of a decoder.

    - `layers`: the number of layers; `expert_layers` of them have a mixture of experts
      instead of an MLP;
    - `d_model`, `vocab`: the width of the hidden states, and the size of the
      vocabulary;
    - `heads`, `kv_heads`, `head_width`: the number of query heads, the number of
      key-value heads, and the width of a head;
    - `ffn`, `gated`: the inner width of an MLP, and whether MLPs and experts are gated;
    - `experts`, `choices`, `expert_ffn`: the number of experts of a mixture, the number
      of experts that a token goes to, and the inner width of an expert;
    - `shared_ffn`: the inner width of the expert that takes every token, or 0 without
      such an expert;
    - `dtype`: the element type of parameters and caches;
    - `tied`: whether the output matrix is the embedding;
    - `positions`: the number of learned positions, or None;
    - `latent`: the sizes of latent attention, or None; with it, `head_width` is the
      width of a value;
    - `window`, `window_layers`: the number of tokens in the window of windowed
      attention, and the number of layers with such attention, which cache only these
      tokens;
    - `formats`: the number formats of the layers' matrices and of the caches;
    - `page`: the number of tokens in a page of the caches, 1 without pages. A sequence
      takes whole pages. The costs of steps do not depend on it.
    """

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int
    dtype: str
    gated: bool = True
    tied: bool = False
    expert_layers: int = 0
    experts: int = 0
    choices: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    positions: int | None = None
    latent: LatentSizes | None = None
    window: int = 0
    window_layers: int = 0
    formats: StepFormats = PLAIN
    page: int = 1

    @property
    def parameters(self) -> int:
        """
        The number of elements of the matrices in the layers, of the embedding and of
        the output matrix.
        """
        attention = self.head_width * (2 * self.heads + 2 * self.kv_heads)
        matrices = 3 if self.gated else 2
        dense = (self.layers - self.expert_layers) * self.ffn
        inside = self.experts * self.expert_ffn + self.shared_ffn
        mixtures = self.expert_layers * inside
        gates = self.expert_layers * self.experts
        own = matrices * (dense + mixtures) + gates
        tables = 1 if self.tied else 2
        others = self.d_model * (own + tables * self.vocab)
        if self.latent is None:
            return self.layers * attention * self.d_model + others
        sizes = self.d_model, self.heads, self.head_width
        return self.layers * self.latent.parameters(*sizes) + others

    @property
    def cached_elements(self) -> int:
        """
        The number of elements that one token adds to the caches of all layers. A layer
        with windowed attention drops its oldest token once the window is full.
        """
        if self.latent is not None:
            return self.layers * self.latent.cached
        return 2 * self.layers * self.kv_heads * self.head_width

    @property
    def width(self) -> float:
        """The bytes of an element of type `dtype`."""
        return bytes_per_element(element_type(self.dtype))

    @property
    def cached_bytes(self) -> float:
        """
        The bytes that one token adds to the caches of all layers, summed over the
        devices that share the heads.
        """
        if self.formats.cache is None:
            return self.cached_elements * self.width
        # A byte for each element, and a scale for each row of keys or values.
        rows = 1 if self.latent is not None else self.kv_heads
        return self.cached_elements + 2 * self.layers * rows * self.width

    @property
    def experts_in_all(self) -> int:
        """
        The number of elements in the matrices of all routed experts of all layers
        together.
        """
        inside = self.expert_layers * self.experts * self.expert_ffn
        return inside * (3 if self.gated else 2) * self.d_model

    def parameter_bytes(self, elements: float) -> float:
        """
        Returns the bytes of `elements` matrix elements in the layers, without the
        scales of quantised weights.
        """
        kind = self.formats.weights
        if kind is None:
            return elements * self.width
        return elements if kind in EIGHT_BITS else elements / 2


_SIDES = ("key", "value")


def cache_patterns(sizes: DecoderSizes) -> list[str]:
    """
    Returns patterns of the names of all caches that have heads. Each pattern states
    which dimension has the heads, in the syntax of layout requests. Caches of latents
    have no heads.
    """
    if sizes.latent is not None:
        return []
    return [
        f"{name}:1"
        for side in _SIDES
        for name in cache_names(f"*.self_attn.{side}", sizes.formats)
    ]


def build_serving_step(
    sizes: DecoderSizes,
    batch: int,
    new: int = 1,
    cached: int = 0,
    *,
    layers: tuple[int, int] | None = None,
) -> ModuleOp:
    """
    Returns the program of an inference step. Each of `batch` sequences has `new` new
    tokens after `cached` tokens. The program maps token ids [batch, new] to the logits
    of the last token, [batch, 1, vocab]. `layers` are the numbers of layers with an MLP
    and with experts, by default taken from `sizes`.

    Caches are inputs `model.layers.<i>.self_attn.key` and `.value`, [batch, kv heads,
    cached, width of a head]. With latent attention, they are [batch, 1, cached, width]:
    the keys are rotary keys with latents, and the values are latents. Attention reads
    the caches, or without caches the keys and values of the new tokens. The program
    also returns the keys and values of the new tokens.

    Raises DistIRError if a size is not valid, or if there are both a cache and several
    new tokens, because no op computes such attention.
    """
    check_sizes(layers=sizes.layers, vocab=sizes.vocab, batch=batch, new=new)
    if cached and new > 1:
        raise DistIRError(
            f"a step of {new} tokens behind a cache of {cached}: build a step with one "
            f"new token, or without a cache"
        )
    dense, mixed = layers or (sizes.layers - sizes.expert_layers, sizes.expert_layers)
    element = element_type(sizes.dtype)
    # The head and the embedding keep the type of the model.
    main = StepBuilder(element, "", replace(sizes.formats, weights=None))
    ids = main.argument("input_ids", (batch, new), role="input", element=i64)
    shapes = _cache_shapes(sizes, batch, cached)
    built = {
        is_mixed: _layer(sizes, is_mixed, batch, new, cached)
        for is_mixed, count in ((False, dense), (True, mixed))
        if count
    }
    kinds = [False] * dense + [True] * mixed
    names = [f"model.layers.{i}" for i in range(len(kinds))]
    caches = [
        [
            part
            for side, shape in zip(_SIDES, shapes, strict=True)
            if cached
            for part in main.cached(f"{name}.self_attn.{side}", shape, "input")
        ]
        for name in names
    ]
    h = main.embedding("model.embed_tokens", ids, sizes.vocab, sizes.d_model)
    embedding = main.block.args[-1]
    kept: list[SSAValue] = []
    for name, is_mixed, own in zip(names, kinds, caches, strict=True):
        layer = built[is_mixed]
        parameters = main.parameters(name, layer.parameters)
        h, *new_ones = main.calls(layer.function, name, [h, *own, *parameters])
        kept += new_ones
    if new > 1:
        ends = [main.integers(n) for n in (new - 1, new, 1)]
        h = main.at("model").op("Slice", [h, *ends], (batch, 1, sizes.d_model))
    h = main.rms_norm("model.norm", h, _EPSILON)
    if sizes.tied:
        logits = main.at("lm_head").product(h, embedding)
    else:
        logits = main.linear("lm_head", h, sizes.vocab, bias=False)
    results = [
        part
        for name in names
        for side in _SIDES
        for part in cache_names(f"{name}.self_attn.{side}", sizes.formats)
    ]
    step = main.finish(ENTRY, [logits, *kept], ["logits", *results])
    return ModuleOp([step, *(layer.function for layer in built.values())])


def _layer(
    sizes: DecoderSizes, is_mixed: bool, batch: int, new: int, cached: int
) -> Layer:
    """
    Returns the function of a layer. The function maps the hidden states, the cached
    keys and values (if there is a cache), and the parameters to the hidden states, new
    keys and new values.
    """
    b = StepBuilder(element_type(sizes.dtype), _ROOT, sizes.formats)
    x = b.argument("hidden", (batch, new, sizes.d_model), role=None)
    shapes = _cache_shapes(sizes, batch, cached)
    held = [b.cached(n, s) for n, s in zip(_SIDES, shapes, strict=True) if cached]
    h = b.rms_norm("input_layernorm", x, _EPSILON)
    caches = [b.at("self_attn").read(parts) for parts in held]
    if sizes.latent is None:
        h, own = _attention(b, sizes, h, caches)
    else:
        h, own = latent_attention(
            *(b, sizes.latent, sizes.heads, sizes.head_width), h, caches
        )
    new_parts = [part for value in own for part in b.at("self_attn").kept(value)]
    h = b.linear("self_attn.o_proj", h, sizes.d_model, bias=False)
    x = b.at().elementwise("Add", x, h)
    h = b.rms_norm("post_attention_layernorm", x, _EPSILON)
    h = _mixture(b, sizes, h) if is_mixed else _mlp(b, "mlp", h, sizes.ffn, sizes.gated)
    out = b.at().elementwise("Add", x, h)
    name = "expert_layer" if is_mixed else "layer"
    return Layer(b.finish(name, [out, *new_parts]), b.own)


def _cache_shapes(
    sizes: DecoderSizes, batch: int, cached: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of a layer's caches of keys and values."""
    if sizes.latent is None:
        shape = (batch, sizes.kv_heads, cached, sizes.head_width)
        return shape, shape
    widths = sizes.latent.cached, sizes.latent.rank
    keys, values = ((batch, 1, cached, width) for width in widths)
    return keys, values


def _attention(
    b: StepBuilder, sizes: DecoderSizes, h: SSAValue, caches: Sequence[SSAValue]
) -> tuple[SSAValue, list[SSAValue]]:
    """
    Adds attention without its output projection. Returns the result [batch, new, heads
    x width], and the new keys and values.
    """
    width = sizes.head_width
    q, *own = (
        b.heads(b.linear(f"self_attn.{name}_proj", h, count * width, bias=False), width)
        for name, count in (
            ("q", sizes.heads),
            ("k", sizes.kv_heads),
            ("v", sizes.kv_heads),
        )
    )
    b.at("self_attn")
    made = b.attention(q, *(caches or own), causal=not caches)
    return b.merge_heads(made), own


def _mlp(b: StepBuilder, name: str, h: SSAValue, ffn: int, gated: bool) -> SSAValue:
    """Adds an MLP of inner width `ffn`, gated or with GELU, and returns the result."""
    d_model = shape_of(h)[-1]
    up = b.linear(f"{name}.up_proj", h, ffn, bias=False)
    if gated:
        gate = b.linear(f"{name}.gate_proj", h, ffn, bias=False)
        gate = b.at(f"{name}.act_fn").elementwise("Swish", gate)
        up = b.elementwise("Mul", gate, up)
    else:
        up = b.at(f"{name}.act_fn").op("Gelu", [up], shape_of(up), approximate="tanh")
    return b.linear(f"{name}.down_proj", up, d_model, bias=False)


def _mixture(b: StepBuilder, sizes: DecoderSizes, h: SSAValue) -> SSAValue:
    """
    Adds a mixture of experts without a capacity, so that no token is dropped, and
    returns the result.
    """
    batch, new, d_model = shape_of(h)
    tokens, choices = batch * new, sizes.choices
    scope: dict[str, Attribute] = {SCOPE: SCOPE.attr(b.path("mlp.experts"))}
    flat = b.at("mlp").reshape(h, (tokens, 1, d_model))
    scores = b.linear("mlp.gate", flat, sizes.experts, bias=False)
    chosen = (tokens, 1, choices)
    count = b.integers(choices)
    weights, ids = b.results(
        "TopK", [scores, count], [(chosen, None), (chosen, i64)], axis=-1
    )
    weights = b.op("Softmax", [weights], chosen, axis=-1)
    places = ExpertPlacesOp(
        ids,
        experts=sizes.experts,
        capacity=1,
        rows=b.type((1, tokens, choices), i64),
    )

    def added(op: DispatchOp | CombineOp | GroupedProductOp) -> SSAValue:
        op.attributes.update(scope)
        b.block.add_op(op)
        return op.results[0]

    places.attributes.update(scope)
    b.block.add_op(places)
    rows = (1, tokens, choices)

    def product(value: SSAValue, name: str, inputs: int, outputs: int) -> SSAValue:
        matrices = b.at("mlp.experts").experts(
            f"mlp.experts.{name}", sizes.experts, inputs, outputs
        )
        return added(
            GroupedProductOp(
                value,
                places.rows,
                matrices.value,
                transposed=matrices.transposed,
                taken=choices,
                result=b.type((*rows, outputs)),
            )
        )

    inside = sizes.expert_ffn
    sent = added(
        DispatchOp(
            flat,
            places.slots,
            places.rows,
            None,
            result=b.type((*rows, d_model)),
        )
    )
    up = product(sent, "up_proj", d_model, inside)
    if sizes.gated:
        gate = product(sent, "gate_proj", d_model, inside)
        gate = b.at("mlp.act_fn").elementwise("Swish", gate)
        up = b.elementwise("Mul", gate, up)
    else:
        up = b.at("mlp.act_fn").op("Gelu", [up], shape_of(up), approximate="tanh")
    down = product(up, "down_proj", inside, d_model)
    out = added(
        CombineOp(
            down,
            places.slots,
            places.rows,
            weights,
            result=b.type((tokens, 1, d_model)),
        )
    )
    out = b.at("mlp").reshape(out, (batch, new, d_model))
    if sizes.shared_ffn:
        shared = _mlp(b, "mlp.shared_expert", h, sizes.shared_ffn, sizes.gated)
        out = b.at("mlp").elementwise("Add", out, shared)
    return out
