"""
Packages of built models with a prefill and a decode on gloo processes: greedy tokens
equal those of transformers, or of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.generation import (
    NEW_TOKENS,
    PROMPTS,
    SIZES,
    distributed,
    generated,
    generated_by_transformers,
    tiny_model,
)
from support.thoroughness import chosen
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_moe
from distir.frontends.models.generation import build_serving
from distir.frontends.models.llama import build_llama
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.lowering.torch_package import write_package
from distir.program import Program
from distir.program.entries import one_entry
from distir.tools.entry_checks import compared

BUILT: Mapping[str, tuple[Callable[..., ModuleOp], Mapping[str, Any]]] = {
    "llama": (build_llama, {"kv_heads": 2, "ffn": 64}),
    "mixtral": (
        build_llama,
        {"kv_heads": 2, "ffn": 64, "experts": 4, "theta": 1e6},
    ),
    "gpt2": (build_gpt, {}),
    "moe": (build_moe, {"experts": 4}),
}
"""The builders of decoders of the same sizes as the tiny ones, and their options."""

BUILT_SIZES: Mapping[str, Any] = {"layers": 2, "d_model": 32, "heads": 4, "vocab": 96}

BUILT_PLANS = [
    ("llama", {"t": 2}),
    ("llama", {"d": 2, "p": 2}),
    ("mixtral", {"e": 2}),
    ("gpt2", {"t": 2}),
    ("gpt2", {"p": 2, "k": 2}),
    ("moe", {"e": 2}),
    ("moe", {"t": 2, "p": 2}),
]


def known_tokens(kind: str) -> tuple[Mapping[str, Any], list[list[int]], int]:
    """
    Weights for a built model, the tokens that they give, and how many of them are new:
    those of transformers, or of the forward pass where transformers has no such model.
    """
    if kind != "moe":
        positions = {"n_positions": SIZES.cache} if kind == "gpt2" else {}
        norms = {} if kind == "gpt2" else {"rms_norm_eps": 1e-5}
        model = tiny_model(kind, **positions, **norms)
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        return weights, generated_by_transformers(model), NEW_TOKENS
    new, length = 6, SIZES.cache
    forward = build_moe(
        **BUILT_SIZES, experts=4, capacity_factor=2.0, batch=1, seq=length
    )
    arguments = Program(forward).arguments
    values = {
        a.name: v * 8
        for a, v in zip(arguments, random_arguments(forward, 0), strict=True)
    }
    wanted: list[list[int]] = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(new):
            ids = np.array([tokens + [0] * (length - len(tokens))])
            given = [(values | {"input_ids": ids})[a.name] for a in arguments]
            (logits,) = run_program(forward, given)
            tokens.append(int(logits[0, len(tokens) - 1].argmax()))
        wanted.append(tokens)
    return values, wanted, new


@pytest.mark.parametrize(("kind", "plan"), chosen(BUILT_PLANS, [("moe", {"e": 2})]))
def test_tokens_of_a_built_model(
    kind: str, plan: dict[str, int], tmp_path: Path
) -> None:
    builder, options = BUILT[kind]
    program = build_serving(builder, SIZES, **BUILT_SIZES, **options)
    module = distributed(program, **plan)
    weights, wanted, new = known_tokens(kind)
    names = {a.name for a in Program(one_entry(program, "decode")).arguments}
    own = {name: value for name, value in weights.items() if name in names}
    own.pop("input_ids", None)
    found = compared((program, module), ("model", "distributed"), own, {}, 0, None)
    assert found[-1].name == "decode after prefill"
    assert all(each.within for each in found)
    folder = write_package(module, tmp_path / "package")
    processes = prod(n for axis, n in plan.items() if axis != "k")
    made = generated(folder, own, processes, new=new, in_place="k" not in plan)
    assert len({token for tokens in made for token in tokens[-new:]}) > 3
    assert made == wanted
