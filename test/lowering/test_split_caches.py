"""
Packages whose caches are split along positions, on gloo processes: greedy tokens equal
those of transformers, and caches stay where they are.
"""

from __future__ import annotations

import functools
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.generation import (
    distributed,
    generated,
    generated_by_transformers,
    imported,
    tiny_model,
)
from support.thoroughness import chosen

from distir.frontends.imported_model import ImportedModel
from distir.lowering.torch_package import write_package
from distir.tools.entry_checks import compared

POSITIONS = {"t": 4, "cache_split": "positions"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"c": 2}),
    ("llama", {"c": 2, "t": 2}),
    ("llama", POSITIONS),
    ("llama", {"c": 2, "p": 2}),
    ("llama", {"c": 2, "d": 2}),
    ("llama", {**POSITIONS, "c": 2}),
    ("llama", {"c": 2, "context_order": "cyclic"}),
    ("mixtral", {"c": 2}),
    ("mixtral", {"c": 2, "e": 2}),
    ("mistral", {"c": 2}),
    ("deepseek_v3", {"c": 2}),
    ("deepseek_v3", {"t": 2, "cache_split": "positions"}),
    ("gpt2", {"c": 2}),
    ("qwen3", {"c": 2}),
    ("t5", {"c": 2}),
]
QUICK: list[tuple[str, dict[str, Any]]] = [("llama", {"c": 2, "t": 2})]
NEW_TOKENS = 12


@functools.cache
def known(kind: str) -> tuple[list[list[int]], ImportedModel]:
    """The tokens that transformers generates, and the program."""
    model = tiny_model(kind)
    wanted = generated_by_transformers(model, new=NEW_TOKENS)
    return wanted, imported(model, check=False)


@pytest.mark.parametrize(("kind", "plan"), chosen(CASES, QUICK), ids=str)
def test_tokens_equal_those_of_transformers(
    kind: str, plan: dict[str, Any], tmp_path: Path
) -> None:
    wanted, program = known(kind)
    module = distributed(program.module, **plan)
    modules, names = (program.module, module), ("model", "distributed")
    found = compared(modules, names, program.weights, {}, 0, None)
    assert [each.name for each in found][-1] == "decode after prefill"
    assert all(each.within for each in found)
    folder = write_package(module, tmp_path)
    processes = prod(n for n in plan.values() if isinstance(n, int))
    made = generated(folder, program.weights, processes, new=NEW_TOKENS)
    assert made == wanted
