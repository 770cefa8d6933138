"""Vocabularies that the tensor-parallel devices do not divide are padded, and nothing changes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support.pipelines import arguments_of, assert_equal_results, distributed
from support.programs import parse
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType

from distir.dialects.dist import layout_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.lookups import Uses
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.planning.annotations import read_notes
from distir.program import argument_names, entry_function

TIED = "transformer.wte.weight"
OPTIONS: list[dict[str, Any]] = [
    {"t": 2},
    {"t": 4, "sequence_parallel": True},
    {"d": 2, "t": 2, "zero": 1},
    {"d": 2, "t": 2, "zero": 3, "checkpoint": "full"},
    {"t": 2, "p": 2, "k": 2},
    {"d": 2, "t": 2, "p": 2, "k": 2, "zero": 2},
]
CASES = [(vocabulary, options) for vocabulary in (37, 257) for options in OPTIONS]


@functools.cache
def step(vocabulary: int, dtype: str = "f32", **options: Any) -> ModuleOp:
    """The training step of a GPT whose embedding is its head, too."""
    module = build_gpt(2, 16, 4, vocabulary, 4, 8, dtype)
    DifferentiatePass(**options).apply(Context(), module)
    return module


def type_of(module: ModuleOp, name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The shape of an argument, and the axes that split it."""
    function = entry_function(module)
    value = function.args[argument_names(function).index(name)]
    layout = layout_of(value)
    assert layout is not None and isinstance(value.type, TensorType)
    return value.type.get_shape(), layout.split_axes


@pytest.mark.parametrize(
    ("vocabulary", "options"),
    chosen(CASES, [(37, OPTIONS[1]), (257, OPTIONS[3]), (37, OPTIONS[5])]),
)
def test_a_padded_vocabulary_changes_nothing(
    vocabulary: int, options: dict[str, Any]
) -> None:
    module = step(vocabulary, clip=0.5)
    arguments = arguments_of(module)
    split = distributed(module, **options)
    shape, axes = type_of(split, TIED)
    if options.get("zero") != 3:
        padded = -(-vocabulary // options["t"]) * options["t"]
        assert (shape, axes) == ((padded, 16), ("t",))
    results = run_program(split, arguments)
    assert_equal_results(module, run_program(module, arguments), results)
    (note,) = [n for n in read_notes(split) if "is padded with zeros" in n]
    assert f"{TIED}: {vocabulary} is padded" in note


def test_adam_in_16_bits_with_master_copies() -> None:
    module = step(37, "bf16")
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    results = run_program(distributed(module, d=2, t=2, zero=1), arguments)
    for own, other in zip(expected, results, strict=True):
        own, other = own.astype(np.float32), other.astype(np.float32)
        np.testing.assert_allclose(other, own, 0.1, 0.05)


def test_sizes_that_divide_stay() -> None:
    split = distributed(step(36), t=2)
    assert type_of(split, TIED)[0] == (36, 16)
    assert not any("padded" in note for note in read_notes(split))


HEAD = """
func.func @main(
  %ids: tensor<4xi64> {dist.role = "input", dist.name = "ids"},
  %table: tensor<5x8xf32> {dist.role = "parameter", dist.name = "table"},
  %w: tensor<8x5xf32> {dist.role = "parameter", dist.name = "w"},
  %b: tensor<5xf32> {dist.role = "parameter", dist.name = "b"}
) -> tensor<4x5xf32> {
  %x = onnx.Gather(%table, %ids) : (tensor<5x8xf32>, tensor<4xi64>) -> tensor<4x8xf32>
  %h = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x5xf32>) -> tensor<4x5xf32>
  %y = onnx.Add(%h, %b) : (tensor<4x5xf32>, tensor<5xf32>) -> tensor<4x5xf32>
  func.return %y : tensor<4x5xf32>
}"""


def assert_same_outputs(module: ModuleOp, split: ModuleOp, ids: list[int]) -> None:
    """Both programs give the same for these indices."""
    arguments = arguments_of(module)
    (place,) = (
        i
        for i, name in enumerate(argument_names(entry_function(module)))
        if name == "ids"
    )
    arguments[place] = np.array(ids)
    results = run_program(split, arguments)
    assert_equal_results(module, run_program(module, arguments), results)


@pytest.mark.parametrize("t", [2, 4])
def test_a_head_of_its_own_with_a_bias(t: int) -> None:
    """Indices that count from the end of the table do so still; one device has no class."""
    module = parse(HEAD)
    DifferentiatePass().apply(Context(), module)
    split = distributed(module, t=t)
    padded = -(-5 // t) * t
    assert type_of(split, "table")[0] == (padded, 8)
    assert type_of(split, "w")[0] == (8, padded)
    assert type_of(split, "b")[0] == (padded,)
    assert_same_outputs(module, split, [0, 4, -1, -5])


def test_programs_without_a_loss_are_padded_when_asked() -> None:
    module = parse(HEAD)
    assert type_of(distributed(module, t=2), "w")[0] == (8, 5)
    split = distributed(module, t=2, shard=("w:1=t", "table:0=t"))
    assert type_of(split, "w") == ((8, 6), ("t",))
    assert type_of(split, "table") == ((6, 8), ("t",))
    assert_same_outputs(module, split, [0, 4, -1, -5])


def test_what_cannot_work_on_more_is_refused_as_ever() -> None:
    text = HEAD.replace("onnx.MatMul(%x, %w)", "onnx.MatMul(%x, %v)").replace(
        "  %h =",
        "  %v = onnx.Softmax(%w) {axis = 1 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>\n  %h =",
    )
    with pytest.raises(DistIRError, match="5"):
        distributed(parse(text), t=2, shard=("w:1=t",))


def test_integers_stay_within_the_vocabulary() -> None:
    """Those that are drawn, and those that are accepted."""
    module = parse(HEAD)
    DifferentiatePass().apply(Context(), module)
    split = distributed(module, t=4)
    function = entry_function(split)
    for name in ("ids", "labels"):
        index = argument_names(function).index(name)
        for seed in range(8):
            assert random_arguments(split, seed)[index].max() < 5
        uses = Uses(split).lookups(function.args[index], exactly=True)
        with pytest.raises(DistIRError, match=f"{name!r} holds 5"):
            for lookup in uses:
                lookup.check(name, np.array([5, 0, 0, 0]))
