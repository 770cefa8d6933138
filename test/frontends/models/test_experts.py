"""Mixtures of experts: what they compute, their gradients, and experts on devices of their own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from support.programs import inferred_types, names_by_role, ops_of, round_trip
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models.basic import build_moe
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function

HEADS = 2
SIZES: dict[str, Any] = dict(
    layers=2, d_model=8, heads=HEADS, experts=4, vocab=16, batch=2, seq=8
)

Weights = dict[str, torch.Tensor]


def norm(x: torch.Tensor, p: Weights, name: str) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])


def linear(x: torch.Tensor, p: Weights, name: str) -> torch.Tensor:
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def attention(x: torch.Tensor, p: Weights, name: str) -> torch.Tensor:
    qkv = linear(norm(x, p, f"{name}.ln_1"), p, f"{name}.attn.c_attn")
    q, k, v = (
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in qkv.chunk(3, -1)
    )
    h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + linear(h.transpose(1, 2).flatten(2), p, f"{name}.attn.c_proj")


def experts(x: torch.Tensor, p: Weights, name: str, places: int) -> torch.Tensor:
    """Token by token, in the order in which they take places."""
    gates = torch.softmax(x @ p[f"{name}.gate.weight"], -1)
    first, second = (
        p[f"{name}.experts.{n}.weight"].unbind() for n in ("c_fc", "c_proj")
    )
    groups: list[torch.Tensor] = []
    for tokens, likes in zip(x, gates, strict=True):
        best = likes.topk(2)
        taken = [0] * len(first)
        out = [torch.zeros_like(token) for token in tokens]
        for choice in range(2):
            for i, token in enumerate(tokens):
                expert = int(best.indices[i, choice])
                taken[expert] += 1
                if taken[expert] <= places:
                    weight = best.values[i, choice] / best.values[i].sum()
                    h = F.gelu(token @ first[expert], approximate="tanh")
                    out[i] = out[i] + weight * (h @ second[expert])
        groups.append(torch.stack(out))
    return torch.stack(groups)


def model(ids: torch.Tensor, p: Weights, places: int) -> torch.Tensor:
    """Two layers, the second one with experts."""
    h = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"]
    h = attention(h, p, "transformer.h.0")
    inner = linear(norm(h, p, "transformer.h.0.ln_2"), p, "transformer.h.0.mlp.c_fc")
    inner = F.gelu(inner, approximate="tanh")
    h = h + linear(inner, p, "transformer.h.0.mlp.c_proj")
    h = attention(h, p, "transformer.h.1")
    tokens = norm(h, p, "transformer.h.1.ln_2")
    h = h + experts(tokens, p, "transformer.h.1.moe", places)
    return norm(h, p, "transformer.ln_f") @ p["transformer.wte.weight"].T


def arguments_of(module: ModuleOp) -> dict[str, npt.NDArray[Any]]:
    """Random arguments, matrices so large that every choice of an expert shows."""
    names = argument_names(entry_function(module))
    values = random_arguments(module, seed=1)
    return {
        name: value * 20 if ".h." in name and value.ndim > 1 else value
        for name, value in zip(names, values, strict=True)
    }


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_moe_is_valid(dtype: str) -> None:
    module = build_moe(**SIZES, dtype=dtype)
    round_trip(module)
    for op in ops_of(module):
        assert inferred_types(op) == [r.type for r in op.results], str(op)
    found = [n for n in names_by_role(module)["parameter"] if ".moe." in n]
    assert found == [
        f"transformer.h.1.moe.{n}.weight"
        for n in ("gate", "experts.c_fc", "experts.c_proj")
    ]


@pytest.mark.parametrize("capacity_factor", [0.3, 1.0, 4.0])
def test_tokens_go_to_their_best_two_while_there_are_places(
    capacity_factor: float,
) -> None:
    module = build_moe(**SIZES, capacity_factor=capacity_factor)
    arguments = arguments_of(module)
    [logits] = run_program(module, list(arguments.values()))
    weights = {n: torch.tensor(a) for n, a in arguments.items()}
    ids = weights.pop("input_ids")
    places = math.ceil(capacity_factor * 2 * 8 / 4)
    expected = model(ids, weights, places)
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
    fewer = model(ids, weights, places - 1)
    assert (capacity_factor < 2) is not np.allclose(logits, fewer.numpy(), atol=1e-4)


def test_gradients_are_pytorchs() -> None:
    module = build_moe(**SIZES)
    DifferentiatePass(optimizer="none").apply(Context(), module)
    arguments = arguments_of(module)
    loss, *gradients = run_program(module, list(arguments.values()))
    tensors = {n: torch.tensor(a) for n, a in arguments.items()}
    ids, labels = (tensors.pop(n) for n in ("input_ids", "labels"))
    parameters = {n: t.requires_grad_() for n, t in tensors.items()}
    expected = F.cross_entropy(
        model(ids, parameters, 4).flatten(0, 1), labels.flatten()
    )
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-4)
    assert len(gradients) == len(parameters)
    for found, (name, parameter) in zip(gradients, parameters.items(), strict=True):
        assert parameter.grad is not None, name
        np.testing.assert_allclose(
            found, parameter.grad.numpy(), atol=2e-4, err_msg=name
        )


@pytest.mark.parametrize("axis", ["d", "t"])
def test_experts_on_their_own_devices_compute_the_same(axis: str) -> None:
    module = build_moe(**SIZES)
    DifferentiatePass(optimizer="sgd").apply(Context(), module)
    split = f"*.moe.experts.*.weight:0={axis}"
    parallel = distributed(module, d=2, t=2, shard=(split,))
    assert f"tensor<4x8x32xf32, #dist.layout<@mesh, [{{{axis}}}, " in str(parallel)
    arguments = list(arguments_of(module).values())
    for a, b in zip(
        run_program(module, arguments), run_program(parallel, arguments), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 1}, "1 experts: each token goes to 2"),
        ({"experts": 0}, "experts is 0; a model needs"),
        ({"capacity_factor": 0.0}, "capacity is 0.0 times"),
        ({"ffn": 0}, "ffn is 0; a model needs"),
    ],
)
def test_sizes_of_moe(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DistIRError, match=message):
        build_moe(**(SIZES | change))
