"""Sequences that are split through attention: the same results as on one device."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from support.llama_programs import llama_step
from support.programs import parse
from support.thoroughness import chosen, sampled
from support.training_programs import distributed, training_gpt
from transformers import LlamaConfig, LlamaForCausalLM
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

import distir
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    PermuteOp,
    ReduceScatterOp,
)
from distir.dialects.train_ops.attention import CausalAttentionOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.differentiate import DifferentiatePass
from distir.planning.annotations import read_notes
from distir.program import argument_names, argument_roles, entry_function


def assert_same(module: ModuleOp, **options: Any) -> ModuleOp:
    """That a distribution computes what the program does; gives it."""
    other = distributed(module, **options)
    arguments = random_arguments(module, 3)
    expected, actual = run_program(module, arguments), run_program(other, arguments)
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    return other


def attention_step(
    attributes: str, heads: int, groups: int, length: int = 16
) -> ModuleOp:
    """A step of one attention layer over 2 sequences, with heads of 4."""
    x, y = f"tensor<2x{length}x8xf32>", f"tensor<2x{length}x{heads * 4}xf32>"
    w, kv = f"tensor<8x{heads * 4}xf32>", f"tensor<8x{groups * 4}xf32>"
    few = f"tensor<2x{length}x{groups * 4}xf32>"
    module = parse(f"""
      func.func @main(
        %x: {x} {{dist.role = "input", dist.name = "x"}},
        %wq: {w} {{dist.role = "parameter", dist.name = "wq"}},
        %wk: {kv} {{dist.role = "parameter", dist.name = "wk"}},
        %wv: {kv} {{dist.role = "parameter", dist.name = "wv"}}
      ) -> {y} {{
        %q = onnx.MatMul(%x, %wq) : ({x}, {w}) -> {y}
        %k = onnx.MatMul(%x, %wk) : ({x}, {kv}) -> {few}
        %v = onnx.MatMul(%x, %wv) : ({x}, {kv}) -> {few}
        %y = onnx.Attention(%q, %k, %v) {{{attributes}
            q_num_heads = {heads} : i64, kv_num_heads = {groups} : i64}}
            : ({y}, {few}, {few}) -> {y}
        func.return %y : {y}
      }}""")
    step = DifferentiatePass(loss="mse", optimizer="sgd", learning_rate=1.0)
    step.apply(Context(), module)
    return module


CAUSAL = "is_causal = 1 : i64,"
ATTRIBUTES = ("", CAUSAL, f"{CAUSAL} softcap = 2.0 : f32,")


def named_roles(module: ModuleOp) -> tuple[list[str], list[str]]:
    entry = entry_function(module)
    return argument_names(entry), argument_roles(entry)


def permutes(module: ModuleOp) -> list[PermuteOp]:
    return [op for op in module.walk() if isinstance(op, PermuteOp)]


@pytest.mark.parametrize(
    ("attributes", "groups", "order"),
    chosen(
        product(ATTRIBUTES, (4, 2), ("contiguous", "cyclic")),
        [
            (ATTRIBUTES[0], 4, "contiguous"),
            (ATTRIBUTES[1], 4, "cyclic"),
            (ATTRIBUTES[1], 2, "contiguous"),
            (ATTRIBUTES[2], 2, "cyclic"),
        ],
    ),
)
def test_attention(attributes: str, groups: int, order: str) -> None:
    module = attention_step(attributes, heads=4, groups=groups)
    other = assert_same(module, c=4, context_order=order)
    # Keys and values of the forward and of the backward, and their gradients.
    assert sum(isinstance(op, AllGatherOp) for op in other.walk()) >= 4
    assert sum(isinstance(op, ReduceScatterOp) for op in other.walk()) == 2
    ring = assert_same(module, c=4, context="ring", context_order=order)
    # Three times keys and values each way, and four times their gradients.
    assert len(permutes(ring)) == 2 * 3 + 2 * 3 + 2 * 4
    assert not any(isinstance(op, ReduceScatterOp) for op in ring.walk())


def test_a_ring_of_sequences_of_an_odd_length() -> None:
    """With 5 tokens a device, the cyclic order deals out one at a time."""
    module = attention_step(CAUSAL, heads=2, groups=1, length=15)
    for order in ("contiguous", "cyclic"):
        assert_same(module, c=3, context="ring", context_order=order)


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"c": 4, "context_order": "cyclic"},
            {"c": 2},
            {"c": 2, "t": 2, "sequence_parallel": True},
            {"d": 2, "c": 2, "t": 2, "zero": 3},
            {"c": 4, "context": "ring", "context_order": "cyclic", "overlap": True},
            {"c": 2, "p": 2, "k": 2},
            {"d": 2, "c": 2, "p": 2, "k": 2, "context": "ring", "zero": 1},
            {"d": 2, "c": 2, "p": 2, "k": 2, "zero": 1, "checkpoint": "full"},
        ],
        2,
    ),
    ids=str,
)
def test_training(options: dict[str, Any]) -> None:
    assert_same(training_gpt(), **options)


def test_positions_that_are_too_few_for_all_devices() -> None:
    """
    The gradient of 4 positions is reduced over "c" before it is scattered over "d": 8 devices
    do not divide it.
    """
    module = build_gpt(2, 8, 4, 12, 4, 4)
    DifferentiatePass(clip=1.0).apply(Context(), module)
    assert_same(module, d=4, c=2, context_order="cyclic", zero=1)


def test_sequences_that_are_too_short_for_both_axes() -> None:
    message = "size 8 is to be split over c=4 x t=4 devices, which do not divide it"
    with pytest.raises(DistIRError, match=message):
        distributed(training_gpt(), c=4, t=4, sequence_parallel=True)


def test_rotary_positions() -> None:
    """Grouped queries, rotary tables and norms of LLaMA."""
    text = str(llama_step(1, 2, 16, width=32, heads=4, groups=2, hidden=48, vocab=64))
    module = parse(text.replace("bf16", "f32").replace("to = 16 :", "to = 1 :"))
    for order in ("contiguous", "cyclic"):
        other = assert_same(module, c=4, context_order=order)
        assert any(isinstance(op, CausalAttentionOp) for op in other.walk())
        assert not read_notes(other)


def test_masks_are_gathered_for() -> None:
    """A ring has no mask, so that attention with one stays as it is, and right."""
    x, m = "tensor<2x8x4xf32>", "tensor<2x1x8x8xf32>"
    heads = "q_num_heads = 2 : i64, kv_num_heads = 2 : i64, is_causal = 1 : i64"
    module = parse(f"""
      func.func @main(
        %x: {x} {{dist.role = "input", dist.name = "x"}},
        %m: {m} {{dist.role = "input", dist.name = "m"}}
      ) -> {x} {{
        %a = onnx.Attention(%x, %x, %x) {{{heads}}} : ({x}, {x}, {x}) -> {x}
        %b = onnx.Attention(%a, %a, %a, %m) {{{heads}}} : ({x}, {x}, {x}, {m}) -> {x}
        func.return %b : {x}
      }}""")
    for order in ("contiguous", "cyclic"):
        other = assert_same(module, c=4, context="ring", context_order=order)
        (note,) = read_notes(other)
        assert note.startswith("distribute: keys are gathered for")
        assert len(permutes(other)) == 3 * 2
    masked = str(module).replace(
        "%a = onnx.Attention(%x, %x, %x)", "%a = onnx.Attention(%x, %x, %x, %m)"
    )
    masked = masked.replace(f"({x}, {x}, {x}) ->", f"({x}, {x}, {x}, {m}) ->", 1)
    with pytest.raises(DistIRError, match="no attention of the program can be a ring"):
        distributed(parse(masked), c=4, context="ring")


def test_an_imported_model() -> None:
    """LLaMA of Hugging Face, with grouped queries, as PyTorch computes it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    llama = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 64, (2, 16))
    program = distir.import_model(llama, (ids,))
    (name,) = (
        name
        for name, role in zip(*named_roles(program.module), strict=True)
        if role == "input"
    )
    for context, order in (("gather", "contiguous"), ("ring", "cyclic")):
        module = distributed(program.module, c=4, context=context, context_order=order)
        assert not read_notes(module)
        values = {**program.weights, name: ids.numpy()}
        arguments = random_arguments(module, 0, values)
        (logits,) = run_program(module, arguments)
        np.testing.assert_allclose(
            logits, llama(ids).logits.detach().numpy(), rtol=1e-4, atol=1e-5
        )


def test_written_out_attention_follows_from_the_rules() -> None:
    module = build_gpt(1, 16, 2, 32, batch=2, seq=8, fused_attention=False)
    other = assert_same(module, c=2)
    (note,) = read_notes(other)
    assert "the program has no attention op over a sequence of 8" in note


def test_memory_and_work_fall() -> None:
    """
    What a long sequence keeps falls by c; parameters stay, and without a ring a device has
    all keys and values while it computes attention.
    """

    def simulated(c: int, **options: Any) -> Simulation:
        module = build_gpt(1, 64, 4, 64, batch=1, seq=4096)
        DifferentiatePass(optimizer="sgd").apply(Context(), module)
        return simulate(distributed(module, c=c, **options))

    one, four = simulated(1), simulated(4)
    # The table of positions and its gradient stay whole.
    kept = keys_and_values = 2 * 4096 * 64 * 4
    quarter = (one.peak_memory_bytes[0] - kept) / 4
    assert max(four.peak_memory_bytes) - kept - keys_and_values < quarter
    assert max(four.flops) * 4 == one.flops[0]
    ring = simulated(4, context="ring")
    assert max(ring.peak_memory_bytes) - kept < quarter
    assert max(ring.flops) == max(four.flops)


def test_nothing_changes_without() -> None:
    module = training_gpt()
    assert str(distributed(module, d=2, t=2, c=1)) == str(distributed(module, d=2, t=2))


def test_a_window_is_left_whole() -> None:
    x = "tensor<2x8x4xf32>"
    heads = "q_num_heads = 2 : i64, kv_num_heads = 2 : i64, is_causal = 1 : i64"
    module = parse(f"""
      func.func @main(%x: {x} {{dist.role = "input", dist.name = "x"}}) -> {x} {{
        %a = onnx.Attention(%x, %x, %x) {{{heads}}} : ({x}, {x}, {x}) -> {x}
        %b = onnx.Attention(%a, %a, %a) {{{heads}, left_window_size = 2 : i64}}
            : ({x}, {x}, {x}) -> {x}
        func.return %b : {x}
      }}""")
    other = assert_same(module, c=2)
    (note,) = read_notes(other)
    assert "is computed whole on every device of axis 'c'" in note
