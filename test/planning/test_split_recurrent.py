"""Recurrent layers whose hidden features are split: what they compute, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.programs import parse
from support.recurrent_programs import GATES, Layer, differentiated
from support.schedules import scheduled
from support.training_programs import assert_judged_as_simulated, distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.search_sharding import SearchShardingPass
from distir.planning.plans.plan import GridPlan
from distir.scheduling import Schedule
from distir.sharding.exchanges import exchanged_axes

LAYERS = [
    Layer(kind, direction, batch_first)
    for kind in GATES
    for direction, batch_first in (
        ("forward", False),
        ("reverse", True),
        ("bidirectional", True),
        ("bidirectional", False),
    )
] + [
    Layer("GRU", linear_before_reset=True),
    Layer("GRU", "bidirectional", batch_first=True, linear_before_reset=True),
]


def gathered(module: ModuleOp) -> list[GatheredOp]:
    """Returns the ops of a program that gather states."""
    return [op for op in module.walk() if isinstance(op, GatheredOp)]


def assert_same(program: ModuleOp, split: ModuleOp) -> None:
    arguments = random_arguments(program, 3)
    results = zip(
        run_program(split, arguments), run_program(program, arguments), strict=True
    )
    for got, expected in results:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_forward_and_gradients_on_two_devices(layer: Layer) -> None:
    program = layer.gradients()
    split = layer.split(program, t=2)
    assert len(gathered(split)) == 2
    assert_same(program, split)


@pytest.mark.parametrize("kind", GATES)
def test_features_and_batch_split(kind: str) -> None:
    """Four parts of features for each half of the batch."""
    layer = Layer(kind, "bidirectional", batch_first=True)
    program = layer.gradients()
    split = layer.split(program, t=4, d=2)
    assert len(gathered(split)) == 2
    assert_same(program, split)


def test_a_layer_stays_whole_where_messages_cost_more_than_its_work() -> None:
    assert not gathered(distributed(Layer("LSTM").gradients(), t=2))


def test_a_large_layer_is_split() -> None:
    """Half of a step is 17 GFLOP here, which takes longer than a message."""
    large = Layer("LSTM", batch=256, inputs=4096, hidden=4096)
    assert len(gathered(distributed(large.gradients(), t=2))) == 2


@pytest.mark.parametrize("layer", LAYERS[::4], ids=str)
def test_a_layer_that_a_schedule_decomposes_is_split(layer: Layer) -> None:
    """Who writes the layer as one that gathers its state has decided on its messages."""
    schedule = Schedule()
    schedule["rnn"].decompose()
    program = layer.gradients()
    decomposed = differentiated(scheduled(layer.program(), schedule))
    assert [op.axes for op in gathered(decomposed)] == [None, None]
    assert_same(program, decomposed)
    split = distributed(decomposed, t=2)
    layouts = [layout_of(op.r) for op in gathered(split)]
    assert layouts and all(layout is not None and layout.dim(1) for layout in layouts)
    assert_same(program, split)


def searched(module: ModuleOp, **options: Any) -> ModuleOp:
    """Returns the program with the layouts that a search chooses over two devices."""
    found = module.clone()
    first = found.body.block.first_op
    assert first is not None
    found.body.block.insert_op_before(load_cluster("cpu"), first)
    SearchShardingPass(axes=("t=2",), **options).apply(Context(), found)
    return found


def test_a_search_splits_a_layer_where_memory_is_short() -> None:
    """Its weights are 256 KiB, and twice that with their gradients."""
    step = differentiated(Layer("LSTM", hidden=128, inputs=128).program(), "sgd")
    assert not gathered(searched(step))
    assert len(gathered(searched(step, memory=700e3))) == 2


X, W, Y = "tensor<4x5x8xf32>", "tensor<1x24x8xf32>", "tensor<4x5x1x8xf32>"
TWO_LAYERS = f"""
func.func @main(%x: {X} {{dist.role = "input", dist.name = "x"}}, {
    ", ".join(
        f'%{n}: {W} {{dist.role = "parameter", dist.name = "{n}"}}'
        for n in ("v", "q", "w", "r")
    )
}) -> {Y} {{
  %axis = onnx.Constant() {{value = dense<2> : tensor<1xi64>}} : () -> tensor<1xi64>
  %a = train.gathered_gru %x, %v, %q {{direction = "forward", batch_first, scope = "a"}} : {
    X
}, {W}, {W} -> {Y}
  %h = onnx.Squeeze(%a, %axis) {{scope = "a"}} : ({Y}, tensor<1xi64>) -> {X}
  %y = train.gathered_gru %h, %w, %r {{direction = "forward", batch_first, scope = "b"}} : {
    X
}, {W}, {W} -> {Y}
  func.return %y : {Y}
}}
"""


def test_a_search_judges_a_pipeline_as_it_is_simulated() -> None:
    """Two stages of two devices, which split the features of their layers."""
    program = differentiated(parse(TWO_LAYERS))
    step = program.clone()
    first = step.body.block.first_op
    assert first is not None
    step.body.block.insert_op_before(load_cluster("cpu"), first)
    assert_judged_as_simulated(step, GridPlan(4, t=2, p=2, k=2))
    assert all(exchanged_axes(op) == ("t",) for op in gathered(step))
    assert_same(program, step)
