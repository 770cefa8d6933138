"""Tables in which rows are looked up: apart where that saves more than it sends."""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import arguments_of, assert_equal_results, distributed
from support.thoroughness import sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.frontends.models.basic import build_gpt
from distir.frontends.models.llama import build_llama
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function

TIED = "transformer.wte.weight"
EMBEDDING = "model.embed_tokens.weight"
STATES = {f"{EMBEDDING}.exp_avg", f"{EMBEDDING}.exp_avg_sq"}


def axes_of(module: ModuleOp, name: str = TIED) -> tuple[str, ...]:
    """The axes that split an argument."""
    function = entry_function(module)
    layout = layout_of(function.args[argument_names(function).index(name)])
    assert layout is not None
    return layout.split_axes


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"t": 2},
            {"d": 2, "t": 4},
            {"t": 2, "sequence_parallel": True},
            {"t": 2, "p": 2, "k": 2},
        ],
        2,
    ),
)
def test_a_vocabulary_is_split(options: dict[str, Any]) -> None:
    module = build_gpt(2, 16, 4, 128, 4, 8)
    split = distributed(module, **options)
    assert axes_of(split) == ("t",)
    arguments = arguments_of(module)
    results = run_program(split, arguments)
    assert_equal_results(module, run_program(module, arguments), results)
    # What multiplies with the table takes its parts as they lie.
    slices = [op for op in split.walk() if op.name == "collective.slice"]
    assert not any("128" in str(op.results[0].type) for op in slices)


def test_tables_smaller_than_what_is_looked_up_stay() -> None:
    """Half of a table is to be more than the words that a device looks up."""
    assert axes_of(distributed(build_gpt(1, 16, 4, 64, 8, 8), t=2)) == ()
    assert axes_of(distributed(build_gpt(1, 16, 4, 64, 8, 8), d=4, t=2)) == ("t",)
    assert axes_of(distributed(build_gpt(1, 16, 4, 64, 4, 8), t=2)) == ()


def test_what_is_asked_for_comes_first() -> None:
    module = build_gpt(1, 16, 4, 128, 4, 8)
    assert axes_of(distributed(module, t=2, whole=(TIED,))) == ()
    assert axes_of(distributed(module, d=2, t=2, shard=(f"{TIED}:1=t",))) == ("t",)


def training_llama(batch: int, tied: bool = False) -> ModuleOp:
    """A training step of a LLaMA with a vocabulary of 128, on sequences of 8."""
    module = build_llama(2, 16, 4, 128, batch, 8, tied=tied)
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    return module


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"d": 2, "t": 2, "sequence_parallel": True},
            {"t": 4},
            {"d": 2, "t": 2, "zero": 3},
            {"d": 2, "t": 2, "p": 2, "k": 2, "zero": 1},
        ],
        2,
    ),
)
def test_a_vocabulary_is_split_in_training(options: dict[str, Any]) -> None:
    """A table that is not tied to the head, with its states."""
    module = training_llama(8)
    split = distributed(module, **options)
    assert "t" in axes_of(split, EMBEDDING)
    states = [n for n in argument_names(entry_function(split)) if n in STATES]
    assert len(states) == 2 and all("t" in axes_of(split, n) for n in states)
    arguments = arguments_of(module)
    results = run_program(split, arguments)
    assert_equal_results(module, run_program(module, arguments), results)


def test_tables_of_training_are_compared_with_the_rows_of_a_micro_batch() -> None:
    assert axes_of(distributed(training_llama(16), t=2), EMBEDDING) == ()
    for options in ({"d": 4}, {"k": 4}):
        split = distributed(training_llama(16), t=2, **options)
        assert axes_of(split, EMBEDDING) == ("t",)
    whole = distributed(training_llama(8), t=4, whole=(EMBEDDING,))
    assert axes_of(whole, EMBEDDING) == ()
