"""Heads that the tensor-parallel devices do not divide are padded, and nothing changes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support.pipelines import arguments_of, assert_equal_results, distributed
from support.programs import parse
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import AttentionOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.frontends.models.llama import build_llama
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.planning.annotations import read_notes
from distir.program import argument_names, entry_function, scope_of, walk_functions
from distir.program.source_forms import SourceForm
from distir.sharding.rules.attention import attention_flops
from distir.transforms.uneven_sizes.head_padding import PaddedHeads


@functools.cache
def forward(heads: int, key_heads: int) -> ModuleOp:
    """A GPT with fused queries, keys and values, or a LLaMA with fewer key heads."""
    if heads == key_heads:
        return build_gpt(2, 4 * heads, heads, 16, 2, 8)
    return build_llama(2, 4 * heads, heads, 16, 2, 8, kv_heads=key_heads, ffn=32)


@functools.cache
def step(heads: int, key_heads: int) -> ModuleOp:
    """The training step of such a model; the gradients' norm is clipped."""
    module = forward(heads, key_heads).clone()
    DifferentiatePass(clip=0.5).apply(Context(), module)
    return module


def attention_of(module: ModuleOp) -> AttentionOp:
    """The first attention of a program."""
    return next(op for _, op in walk_functions(module) if isinstance(op, AttentionOp))


@pytest.mark.parametrize(
    ("heads", "key_heads", "t", "expected"),
    [
        (6, 6, 4, (8, 8)),
        (14, 2, 4, (16, 2)),
        (6, 2, 4, (8, 2)),
        (9, 3, 2, (12, 4)),  # as many as with groups of four: keys are split too
        (10, 5, 4, (16, 8)),
        (8, 2, 4, None),  # four queries of each key head, one for each device
        (12, 4, 4, None),
    ],
)
def test_the_least_padding(
    heads: int, key_heads: int, t: int, expected: tuple[int, int] | None
) -> None:
    found = PaddedHeads.for_parts(heads, key_heads, t)
    new = None if found is None else (found.new_query_heads, found.new_key_heads)
    assert new == expected


OPTIONS: list[dict[str, Any]] = [
    {"t": 4},
    {"t": 4, "sequence_parallel": True, "checkpoint": "full"},
    {"d": 2, "t": 4, "zero": 1},
    {"d": 2, "t": 4, "zero": 3},
    {"t": 4, "p": 2, "k": 2},
]


@pytest.mark.parametrize(
    ("options", "heads", "key_heads"),
    chosen(
        [(options, *heads) for options in OPTIONS for heads in ((6, 6), (14, 2))],
        [(OPTIONS[0], 6, 6), (OPTIONS[2], 14, 2), (OPTIONS[4], 6, 6)],
    ),
)
def test_padded_heads_change_nothing(
    heads: int, key_heads: int, options: dict[str, Any]
) -> None:
    module = step(heads, key_heads)
    arguments = arguments_of(module)
    split = distributed(module, pad=("heads",), **options)
    attention = attention_of(split)
    more = attention_flops(attention) / attention_flops(attention_of(module))
    of_each = more * options.get("k", 1)
    assert of_each == {6: 8 / 6, 14: 16 / 14}[heads]  # which the simulator counts
    layout = layout_of(attention.q)
    assert layout is not None and "t" in layout.split_axes
    assert attention.sizes.query_heads in (8, 16)
    results = run_program(split, arguments)
    assert_equal_results(module, run_program(module, arguments), results)


def test_what_makes_and_takes_heads_is_stored_padded_and_split() -> None:
    """Gathered are keys and values of the two key heads alone, which all devices need."""
    split = distributed(step(14, 2), t=4, pad=("heads",))
    function = entry_function(split)
    args = dict(zip(argument_names(function), function.args, strict=True))
    for name, shape in {
        "q_proj.weight": (64, 56),
        "k_proj.weight": (8, 56),
        "o_proj.weight": (56, 64),
        "q_proj.weight.exp_avg": (64, 56),
    }.items():
        value = args[f"model.layers.1.self_attn.{name}"]
        layout = layout_of(value)
        assert shape_of(value) == shape
        assert layout is not None and layout.split_axes == ("t",)
    gathers = [op for _, op in walk_functions(split) if isinstance(op, AllGatherOp)]
    forward = [op for op in gathers if "self_attn" in scope_of(op)]
    assert [shape_of(op.source)[1] for op in forward] == [2, 2]


def test_programs_without_gradients_and_single_heads() -> None:
    """Fewer heads than devices; results are those of the model, in its own form."""
    for module in (forward(3, 3), forward(6, 2)):
        split = distributed(module, t=4, pad=("heads",))
        arguments = arguments_of(module)
        results = run_program(split, arguments)
        assert_equal_results(module, run_program(module, arguments), results)


ATTENTION = """
func.func @main(
  %x: tensor<2x8x12xf32> {dist.role = "input", dist.name = "x"},
  %mask: tensor<1x3x8x8xf32> {dist.role = "input", dist.name = "mask"},
  %w: tensor<12x12xf32> {dist.role = "parameter", dist.name = "w"}
) -> tensor<2x8x12xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<2x8x12xf32>, tensor<12x12xf32>) -> tensor<2x8x12xf32>
  %g = onnx.Softmax(%h) {axis = -1 : i64} : (tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  %y = onnx.Attention(%h, %g, %x, %mask) {q_num_heads = 3 : i64, kv_num_heads = 3 : i64} : (tensor<2x8x12xf32>, tensor<2x8x12xf32>, tensor<2x8x12xf32>, tensor<1x3x8x8xf32>) -> tensor<2x8x12xf32>
  %z = onnx.Sin(%y) : (tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  func.return %z : tensor<2x8x12xf32>
}"""


def test_ops_that_do_not_keep_zeros_and_masks_of_each_head() -> None:
    """Softmax, a sine, inputs and results have their own sizes."""
    module = parse(ATTENTION)
    split = distributed(module, t=2, pad=("heads",))
    function = entry_function(split)
    assert [shape_of(v) for v in function.args] == [(2, 8, 12), (1, 3, 8, 8), (12, 16)]
    arguments = arguments_of(module)
    results = run_program(split, arguments)
    assert_equal_results(module, run_program(module, arguments), results)


def test_notes_say_what_could_be_padded_and_what_was() -> None:
    told = read_notes(distributed(step(14, 2), t=4))
    assert any(
        "16 query heads and 2 key heads, it can be: --pad heads" in n for n in told
    )
    told = read_notes(distributed(step(6, 6), t=4, pad=("heads",)))
    assert any("6 heads is padded with heads of zeros to 8 heads" in n for n in told)
    told = read_notes(distributed(step(6, 6), t=2, pad=("heads",)))
    assert any("--pad heads changes nothing" in n for n in told)


def test_requests_that_make_no_sense() -> None:
    with pytest.raises(DistIRError, match="choose a larger -t"):
        distributed(step(6, 6), d=2, pad=("heads",))
    with pytest.raises(DistIRError, match=r"'head'.*heads"):
        distributed(step(6, 6), t=2, pad=("head",))


def test_zeros_between_elements() -> None:
    form = SourceForm((2, 4), (2, 6), runs=(1, ((2, 1), (2, 1))))
    values = np.arange(1, 9).reshape(2, 4)
    stored = form.stored(values)
    assert stored.tolist() == [[1, 2, 0, 3, 4, 0], [5, 6, 0, 7, 8, 0]]
    assert np.array_equal(form.source(stored), values)
