"""Latent attention (DeepSeek's MLA) in the steps of an inference service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from distir.dialects.tensors import shape_of
from distir.frontends.models.module_builder import ModuleBuilder

_EPSILON = 1e-6


@dataclass(frozen=True)
class LatentSizes:
    """
    The sizes of latent attention (DeepSeek's MLA). The cache has one latent and one
    rotary key for each token.

    - `rank`: the width of the latent of keys and values.
    - `rotary`: the width of the rotary key.
    - `inner`: the width of the part of a head's query and key that is not rotary.
    - `query_rank`: the width of the latent of queries, or 0 if queries have no latent.
    """

    rank: int
    rotary: int
    inner: int
    query_rank: int = 0

    @property
    def query_width(self) -> int:
        """The width of a head's query."""
        return self.inner + self.rotary

    @property
    def cached(self) -> int:
        """The number of elements that a layer caches for a token."""
        return self.rank + self.rotary

    def parameters(self, d_model: int, heads: int, value_width: int) -> int:
        """Returns the number of elements of the matrices of a layer's attention."""
        query = heads * self.query_width
        first = d_model * query
        if self.query_rank:
            first = self.query_rank * (d_model + query)
        made = self.rank * heads * (self.inner + value_width)
        return first + d_model * self.cached + made + heads * value_width * d_model


def latent_attention(
    b: ModuleBuilder,
    latent: LatentSizes,
    heads: int,
    value_width: int,
    h: SSAValue,
    caches: Sequence[SSAValue],
) -> tuple[SSAValue, list[SSAValue]]:
    """
    Adds latent attention without its output projection, for hidden states `h` [batch,
    new, d_model]. Returns the result [batch, new, heads x value width], and the new
    entries of the caches: rotary keys with latents, and latents.

    Without caches, the keys and values of all heads are computed from the latents of a
    prompt. With caches, queries are multiplied by the key matrices and attend to the
    latents directly; the value matrices are applied to the result. All heads then read
    the same cache.
    """
    inner, rank = latent.inner, latent.rank
    query = h
    if latent.query_rank:
        query = b.linear("self_attn.q_a_proj", h, latent.query_rank, bias=False)
        query = b.rms_norm("self_attn.q_a_layernorm", query, _EPSILON)
    width = latent.query_width
    q = b.heads(b.linear("self_attn.q_b_proj", query, heads * width, bias=False), width)
    both = b.linear("self_attn.kv_a_proj", h, latent.cached, bias=False)
    both = b.heads(both, latent.cached)
    rotary, latents = _split(b, both, latent.rotary)
    own = [both, latents]
    b.at("self_attn")
    if caches:
        turned, plain = _split(b, q, latent.rotary)
        keys = b.parameter("self_attn.k_b_proj", (heads, inner, rank))
        values = b.parameter("self_attn.v_b_proj", (heads, rank, value_width))
        batch, _, new, _ = shape_of(q)
        plain = b.op("MatMul", [plain, keys], (batch, heads, new, rank))
        q = _joined(b, turned, plain)
        made = b.op("Attention", [q, *caches], (batch, heads, new, rank), is_causal=0)
        made = b.op("MatMul", [made, values], (batch, heads, new, value_width))
        return b.merge_heads(made), own
    each = inner + value_width
    flat = b.merge_heads(latents)
    made = b.heads(
        b.linear("self_attn.kv_b_proj", flat, heads * each, bias=False), each
    )
    keys, values = _split(b, made, inner)
    b.at("self_attn")
    shape = (*shape_of(keys)[:3], latent.rotary)
    rotary = b.op("Expand", [rotary, b.integers(*shape)], shape)
    keys = _joined(b, rotary, keys)
    result = (*shape_of(q)[:3], value_width)
    made = b.op("Attention", [q, keys, values], result, is_causal=1)
    return b.merge_heads(made), own


def _split(b: ModuleBuilder, value: SSAValue, first: int) -> list[SSAValue]:
    """
    Returns the first `first` elements of the last dimension, and the remaining
    elements.
    """
    *shape, width = shape_of(value)
    sizes = b.integers(first, width - first)
    types = [((*shape, first), None), ((*shape, width - first), None)]
    return list(b.results("Split", [value, sizes], types, axis=-1))


def _joined(b: ModuleBuilder, first: SSAValue, second: SSAValue) -> SSAValue:
    """Returns `first` and `second` concatenated along the last dimension."""
    *shape, width = shape_of(first)
    width += shape_of(second)[-1]
    return b.op("Concat", [first, second], (*shape, width), axis=-1)
