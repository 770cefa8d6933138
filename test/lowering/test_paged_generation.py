"""
Packages whose cache is in pages, on gloo processes: greedy tokens equal those of the
contiguous cache, and pools of pages stay where they are.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

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

from distir.frontends.models.basic import build_gpt
from distir.frontends.models.generation import build_serving
from distir.frontends.models.llama import build_llama
from distir.frontends.serving import Paging
from distir.lowering.torch_package import write_package
from distir.program import Program
from distir.program.entries import one_entry
from distir.tools.entry_checks import compared

BUILDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (build_llama, {"kv_heads": 2, "ffn": 64}),
    "gpt2": (build_gpt, {}),
}
MODEL: dict[str, Any] = {"layers": 2, "d_model": 32, "heads": 4, "vocab": 96}

# The four sequences have 34, 40, 32 and 36 tokens in the end: in pages of 8, 23 pages.
PLANS: list[tuple[str, Paging, dict[str, int]]] = [
    ("llama", Paging(1, 20, 8), {"t": 2}),
    ("llama", Paging(2, 12, 8), {"d": 2, "t": 2}),
    ("llama", Paging(4, 6, 7), {"p": 2, "k": 2}),
    ("gpt2", Paging(1, 45, 4), {"p": 2}),
]


@functools.cache
def known(kind: str) -> tuple[dict[str, Any], list[list[int]]]:
    """Weights of a model, and the tokens that transformers generates with them."""
    norms = {} if kind == "gpt2" else {"rms_norm_eps": 1e-5}
    positions = {"n_positions": SIZES.cache} if kind == "gpt2" else {}
    model = tiny_model(kind, **norms, **positions)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return weights, generated_by_transformers(model)


@pytest.mark.parametrize(("kind", "paging", "plan"), chosen(PLANS, [PLANS[0]]), ids=str)
def test_tokens_equal_those_of_transformers(
    kind: str, paging: Paging, plan: dict[str, int], tmp_path: Path
) -> None:
    builder, options = BUILDERS[kind]
    sizes = replace(SIZES, paging=paging)
    program = build_serving(builder, sizes, **MODEL, **options)
    module = distributed(program, **plan)
    weights, wanted = known(kind)
    names = {a.name for a in Program(one_entry(program, "decode")).arguments}
    own = {name: value for name, value in weights.items() if name in names}
    found = compared((program, module), ("model", "distributed"), own, {}, 0, None)
    assert found[-1].name == "decode after prefill"
    assert all(each.within for each in found)
    folder = write_package(module, tmp_path / "package")
    processes = prod(n for axis, n in plan.items() if axis != "k")
    assert generated(folder, own, processes, in_place="k" not in plan) == wanted
