"""
MLPs with SwiGLU, and mixtures of experts that are MLPs with SwiGLU, for builders of
models.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.tensors import shape_of
from distir.frontends.models.module_builder import ModuleBuilder
from distir.frontends.models.routing import chosen_experts, grouped_product, mixture


def swiglu_mlp(b: ModuleBuilder, name: str, x: SSAValue, ffn: int) -> SSAValue:
    """
    Returns the SwiGLU MLP of width `ffn` on `x`, [..., d_model], with the same shape.
    `name` is the scope of its three matrices.
    """
    d_model = shape_of(x)[-1]
    gate = b.linear(f"{name}.gate_proj", x, ffn, bias=False)
    gate = b.at(f"{name}.act_fn").elementwise("Swish", gate)
    up = b.linear(f"{name}.up_proj", x, ffn, bias=False)
    x = b.at(name).elementwise("Mul", gate, up)
    return b.linear(f"{name}.down_proj", x, d_model, bias=False)


def swiglu_mixture(
    b: ModuleBuilder,
    x: SSAValue,
    ffn: int,
    experts: int,
    top_k: int,
    group_limit: tuple[int, int] | None = None,
) -> SSAValue:
    """
    Returns the mixture of `experts` SwiGLU MLPs of width `ffn` on `x`, [batch, seq,
    d_model], with the same shape. Each token goes to the `top_k` experts with the
    largest gates; the weights of these experts add up to 1. An expert takes any number
    of tokens. `group_limit` is as in `mixture`.
    """
    batch, seq, d_model = shape_of(x)
    tokens = batch * seq
    b.at("mlp")
    x = b.op("Reshape", [x, b.integers(-1, d_model)], (tokens, d_model))
    scores = b.linear("mlp.gate", x, experts, bias=False)
    routes = chosen_experts(b.at("mlp.gate"), scores, top_k)

    def product(h: SSAValue, rows: SSAValue, name: str, outputs: int) -> SSAValue:
        shape = (experts, outputs, shape_of(h)[-1])
        matrices = b.parameter(f"mlp.experts.{name}", shape)
        return grouped_product(b, h, rows, matrices, transposed=True)

    def inside(h: SSAValue, rows: SSAValue) -> SSAValue:
        h = product(h, rows, "gate_up_proj", 2 * ffn)
        half = (1, tokens, top_k, ffn)
        gate, up = b.ops("Split", [h, b.integers(ffn, ffn)], [half, half], axis=3)
        gate = b.at("mlp.experts.act_fn").elementwise("Swish", gate)
        h = b.at("mlp.experts").elementwise("Mul", gate, up)
        return product(h, rows, "down_proj", d_model)

    h = mixture(b.at("mlp.experts"), x, routes, experts, inside, group_limit)
    b.at("mlp")
    return b.op("Reshape", [h, b.integers(-1, seq, d_model)], (batch, seq, d_model))
