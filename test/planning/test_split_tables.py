"""Tables of programs without a backward: apart where that saves more than it sends."""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import arguments_of, assert_equal_results, distributed
from support.thoroughness import sampled
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.frontends.builders import build_gpt
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function

TIED = "transformer.wte.weight"


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
