"""
Packages with a prefill and a decode on gloo processes: greedy tokens equal those of
transformers, and the cache stays where it is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.generation import assert_generates, known
from support.thoroughness import IS_THOROUGH, chosen

PLANS: dict[str, list[dict[str, int]]] = {
    "llama": [{"t": 2}, {"d": 2, "t": 2}, {"p": 2}, {"p": 2, "k": 2}],
    "mixtral": [{"e": 2}, {"t": 2}, {"p": 2}],
    "mistral": [{"t": 2}, {"p": 2}],
    "deepseek_v3": [{"e": 2}, {"p": 2}, {"t": 2}],
    "mamba": [{"t": 2}, {"p": 2}],
    "qwen3": [{"t": 2}, {"p": 2}],
    "gpt2": [{"t": 2}, {"p": 2}],
    "t5": [{"t": 2}, {"p": 2}, {"d": 2, "t": 2}],
}
CASES = [(kind, plan) for kind, plans in PLANS.items() for plan in plans]
QUICK: list[tuple[str, dict[str, int]]] = [
    ("llama", {"d": 2, "t": 2}),
    ("llama", {"p": 2, "k": 2}),
    ("mixtral", {"e": 2}),
    ("mistral", {"t": 2}),
    ("deepseek_v3", {"p": 2}),
    ("mamba", {"t": 2}),
    ("t5", {"p": 2}),
]
NEW_TOKENS = 32 if IS_THOROUGH else 12
"""After 12, every sequence is longer than the window of `mistral`, which is 6."""


@pytest.mark.parametrize(("kind", "plan"), chosen(CASES, QUICK), ids=str)
def test_tokens_equal_those_of_transformers(
    kind: str, plan: dict[str, int], tmp_path: Path
) -> None:
    wanted, program = known(kind, NEW_TOKENS)
    # Micro-batches are put together again; states are new tensors.
    in_place = "k" not in plan and kind != "mamba"
    assert_generates(wanted, program, plan, tmp_path, NEW_TOKENS, in_place=in_place)
