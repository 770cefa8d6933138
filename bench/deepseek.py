"""
DeepSeek-V3 as a sequential program, for `experts.py`: latent attention, experts with a
shared one, and the first layers without experts, in the sizes of its report.

Positions are not rotated, tokens choose among all experts by softmax, and the layer that
predicts a second token is left out.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, i64

from distir.frontends.models.function_builder import Layer, element_type
from distir.frontends.models.latent_attention import LatentSizes, latent_attention
from distir.frontends.models.module_builder import ModuleBuilder
from distir.frontends.models.swiglu import swiglu_mixture, swiglu_mlp
from distir.program import ENTRY

D_MODEL, HEADS, VALUE, VOCAB = 7168, 128, 128, 129280
LATENT = LatentSizes(rank=512, rotary=64, inner=128, query_rank=1536)
DENSE, DENSE_FFN = 3, 18432
EXPERTS, TOP_K, FFN = 256, 8, 2048
GROUP_LIMIT = (8, 4)
"""The groups of experts, and the most groups that the experts of a token are in."""
_EPSILON = 1e-6


def deepseek_v3(layers: int, batch: int, seq: int, dtype: str = "bf16") -> ModuleOp:
    """Returns the forward pass from token ids [batch, seq] to logits."""
    made = [_layer(kind, (batch, seq, D_MODEL), dtype) for kind in ("dense", "experts")]
    main = ModuleBuilder(element_type(dtype), "")
    ids = main.argument("input_ids", (batch, seq), role="input", element=i64)
    h = main.embedding("model.embed_tokens", ids, VOCAB, D_MODEL)
    for index in range(layers):
        layer, scope = made[index >= DENSE], f"model.layers.{index}"
        own = main.parameters(scope, layer.parameters)
        (h,) = main.calls(layer.function, scope, [h, *own])
    h = main.rms_norm("model.norm", h, _EPSILON)
    logits = main.linear("lm_head", h, VOCAB, bias=False)
    functions = [layer.function for layer in made]
    return ModuleOp([main.finish(ENTRY, [logits], ["logits"]), *functions])


def _layer(kind: str, hidden: tuple[int, int, int], dtype: str) -> Layer:
    """Returns a layer with an MLP (`dense`) or with experts."""
    b = ModuleBuilder(element_type(dtype), "model.layers.*")
    x = b.argument("hidden", hidden, role=None)
    h = b.rms_norm("input_layernorm", x, _EPSILON)
    h, _ = latent_attention(b, LATENT, HEADS, VALUE, h, ())
    h = b.linear("self_attn.o_proj", h, D_MODEL, bias=False)
    x = b.at().elementwise("Add", x, h)
    h = b.rms_norm("post_attention_layernorm", x, _EPSILON)
    if kind == "dense":
        out = swiglu_mlp(b, "mlp", h, DENSE_FFN)
    else:
        shared = swiglu_mlp(b, "mlp.shared_experts", h, FFN)
        chosen = swiglu_mixture(b, h, FFN, EXPERTS, TOP_K, GROUP_LIMIT)
        out = b.at("mlp").elementwise("Add", chosen, shared)
    return Layer(b.finish(kind, [b.at().elementwise("Add", x, out)]), b.own)
