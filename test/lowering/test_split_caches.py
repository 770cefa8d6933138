"""
Packages whose caches are split along positions, on gloo processes: greedy tokens equal
those of transformers, and caches stay where they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.generation import assert_generates, known
from support.thoroughness import chosen

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


@pytest.mark.parametrize(("kind", "plan"), chosen(CASES, QUICK), ids=str)
def test_tokens_equal_those_of_transformers(
    kind: str, plan: dict[str, Any], tmp_path: Path
) -> None:
    wanted, program = known(kind, NEW_TOKENS)
    assert_generates(wanted, program, plan, tmp_path, NEW_TOKENS)
