"""
`generate` of a parallel module of a trained model gives the tokens that transformers gives
with the trained weights, on every rank.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from support.parallel_generation import generated_after_training
from support.ranks import run_ranks
from support.thoroughness import chosen

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", dict(d=2, zero=3)),
    ("llama", dict(t=2)),
    ("llama", dict(p=2, k=2)),
    ("llama", dict(d=2)),
    ("llama", dict(d=2, t=2, zero=1)),
    ("gpt2", dict(t=2)),
    ("gpt2", dict(d=2, zero=3)),
    ("mixtral", dict(e=2)),
    ("t5", dict(t=2)),
    ("t5", dict(d=2, zero=3)),
]


@pytest.mark.parametrize(
    ("kind", "plan"), chosen(CASES, [("llama", dict(d=2, zero=3))]), ids=str
)
def test_tokens_of_the_trained_weights(kind: str, plan: dict[str, Any]) -> None:
    processes = prod(plan.get(axis, 1) for axis in ("d", "e", "t", "p"))
    every = run_ranks(processes, generated_after_training, kind, plan)
    first = every[0]
    assert first["tokens"] == first["wanted"]
    assert first["tensor"] == first["wanted tensor"]
    for found in every:
        assert found["tokens"] == first["tokens"]
        assert found["tensor"] == first["tensor"]
        assert found["trained"] and found["changed"] and found["same programs"]
        shape, side, length, empty = found["errors"]
        assert "of the same shape, but have shapes [4, 9] and [1, 9]" in shape
        assert "is 0 on their left alone" in side
        if kind != "t5":
            assert "9 tokens and 100 new ones are more than the 64 positions" in length
        assert "at least one prompt" in empty
