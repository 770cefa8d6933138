"""Builds the training step of a run as a sequential program."""

from __future__ import annotations

from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.exports.systems.settings import RunSettings
from distir.frontends.models.basic import build_gpt
from distir.frontends.models.llama import build_llama
from distir.passes.differentiate import DifferentiatePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass


def is_llama(settings: RunSettings) -> bool:
    """Whether the model is built as a LLaMA rather than as a GPT-2."""
    return settings.mlp == "swiglu" or settings.norm == "rms"


def approximations(settings: RunSettings) -> list[str]:
    """
    Returns remarks on the model's features that the built program replaces or leaves
    out. Raises DistIRError for a model that cannot be built closely enough to predict
    its time and memory.
    """
    found: list[str] = []
    if not is_llama(settings):
        if settings.kv_heads != settings.heads:
            raise DistIRError(
                "a model with grouped queries and an MLP of GELU cannot be built here; "
                "SwiGLU or RMS norms make it a LLaMA"
            )
        if settings.heads * settings.head_dim != settings.d_model:
            raise DistIRError(
                f"a GPT-2 of width {settings.d_model} whose {settings.heads} heads are "
                f"{settings.head_dim} wide cannot be built here"
            )
        if settings.experts:
            raise DistIRError("experts with GELU cannot be built here; only SwiGLU can")
        if settings.position != "learned":
            found.append("rotary positions, built as learned ones")
        if not settings.bias:
            found.append("products without biases, built with them")
        return found
    if settings.mlp != "swiglu":
        raise DistIRError("RMS norms with an MLP of GELU cannot be built here")
    if settings.norm != "rms":
        found.append("layer norms, built as RMS norms")
    if settings.position != "rotary":
        found.append("learned positions, built as rotary ones")
    if settings.bias or settings.qkv_bias:
        found.append("biases of products, left out")
    if settings.dropout or settings.attention_dropout:
        found.append("dropout, left out")
    return found


def training_step(settings: RunSettings, vocab: int, batch: int) -> ModuleOp:
    """
    Returns the training step of the run's model with Adam, for a batch of `batch`
    sequences and an embedding of `vocab` rows. Raises DistIRError if the model cannot
    be built.
    """
    s = settings
    own: dict[str, Any] = dict(
        layers=s.layers, d_model=s.d_model, heads=s.heads, vocab=vocab, batch=batch,
        seq=s.seq, dtype=s.dtype, ffn=s.ffn, tied=s.tied,
    )  # fmt: skip
    if is_llama(s):
        if s.experts:
            own |= dict(ffn=s.expert_ffn, experts=s.experts, top_k=s.top_k)
        width = None if s.head_dim * s.heads == s.d_model else s.head_dim
        module = build_llama(**own, kv_heads=s.kv_heads, theta=s.theta, head_dim=width)
    else:
        module = build_gpt(**own, dropout=max(s.dropout, s.attention_dropout))
    return trained(module, s)


def trained(module: ModuleOp, settings: RunSettings) -> ModuleOp:
    """
    Turns a forward pass into a training step with Adam, in the precision of `settings`.
    Changes `module` in place and returns it.
    """
    context, s = Context(), settings
    if s.float8:
        Float8Pass(s.float8).apply(context, module)
    DifferentiatePass(
        optimizer="adam",
        loss="cross_entropy",
        dropout_masks="stored",
        gradient_dtype="f32" if s.gradients_f32 and s.dtype != "f32" else "parameter",
        loss_scaling="dynamic" if s.dtype == "f16" else "none",
        master_weights=s.master,
    ).apply(context, module)
    if s.float8:
        ExpandFloat8Pass().apply(context, module)
    return module
