"""Recurrent layers cost what their products of matrices and their messages cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import succeed, write_program
from support.recurrent_programs import Layer
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Block

from distir.dialects.onnx import operator
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.reports.communication_report import communication_of
from distir.sharding.rule import rule_for

STEPS, BATCH, INPUTS, HIDDEN = 5, 4, 6, 8


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("batch_first", [0, 1])
@pytest.mark.parametrize(("name", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_flops_of_a_recurrent_layer(
    name: str, gates: int, batch_first: int, directions: int
) -> None:
    """Each gate of each step multiplies the input and the state by a matrix."""
    x = (BATCH, STEPS, INPUTS) if batch_first else (STEPS, BATCH, INPUTS)
    shapes = [
        x,
        (directions, gates * HIDDEN, INPUTS),
        (directions, gates * HIDDEN, HIDDEN),
    ]
    y = (STEPS, directions, BATCH, HIDDEN)
    if batch_first:
        y = (BATCH, STEPS, directions, HIDDEN)
    block = Block(arg_types=[TensorType(f32, s) for s in shapes])
    op = operator(name).build_op(
        block.args,
        [TensorType(f32, y)],
        {
            "hidden_size": HIDDEN,
            "layout": batch_first,
            "direction": "bidirectional" if directions == 2 else "forward",
        },
    )
    block.add_op(op)
    op.verify()
    gate = 2 * BATCH * HIDDEN * (INPUTS + HIDDEN)
    assert rule_for(op).flops == directions * STEPS * gates * gate


LAYER = """
func.func @main(%x: tensor<5x4x6xf32> {dist.role = "input", dist.name = "x"},
                %w: tensor<1x32x6xf32> {dist.role = "parameter", dist.name = "w"},
                %r: tensor<1x32x8xf32> {dist.role = "parameter", dist.name = "r"})
    -> tensor<5x1x4x8xf32> {
  %y = onnx.LSTM(%x, %w, %r) {hidden_size = 8 : i64, scope = "rnn"}
    : (tensor<5x4x6xf32>, tensor<1x32x6xf32>, tensor<1x32x8xf32>) -> tensor<5x1x4x8xf32>
  func.return %y : tensor<5x1x4x8xf32>
}
"""


def test_recurrent_layer_that_stays_whole_is_noted(tmp_path: Path) -> None:
    model, dist = write_program(tmp_path / "m.mlir", LAYER), tmp_path / "d.mlir"
    done = succeed("distribute", model, "--cluster", "cpu", "-t", "3", "-o", dist)
    assert "onnx.LSTM %y (in rnn) stays whole on axis 't' of size 3" in done.errors
    assert "4 and 8 cannot be split evenly by 3" in done.errors


@pytest.mark.parametrize("t", [2, 4])
@pytest.mark.parametrize(
    ("layer", "exchanges"),
    [
        (Layer("LSTM"), 1),
        (Layer("LSTM", "bidirectional", batch_first=True), 1),
        (Layer("GRU"), 2),
        (Layer("GRU", linear_before_reset=True), 1),
        (Layer("RNN", "reverse"), 1),
    ],
    ids=str,
)
def test_what_split_hidden_features_send(layer: Layer, exchanges: int, t: int) -> None:
    """
    Forwards a state is gathered in each step, (t - 1) / t of which each device sends;
    backwards that is done again, and its gradient is reduced and scattered.
    """
    simulation = simulate(layer.split(layer.gradients(), t))
    sent = {
        s.op: (s.axes, s.times, s.size)
        for s in communication_of(simulation)
        if "train" in s.op
    }
    state = layer.directions * layer.batch * layer.hidden * 4
    times = exchanges * layer.steps
    size = times * state * (t - 1) / t
    kind = f"train.gathered_{layer.kind.lower()}"
    assert sent == {
        kind: (("t",), times, size),
        f"{kind}_grad": (("t",), 2 * times, 2 * size),
    }
    flat = simulate(layer.split(layer.gradients(), t), flat=True)
    assert flat.step_time_s == simulation.step_time_s
    assert flat.communication_bytes == simulation.communication_bytes


def test_messages_take_their_latency_in_each_step() -> None:
    """On the cluster of CPUs: 0.1 ms and 2 GB/s."""
    times: list[float] = []
    for steps in (5, 25):
        layer = Layer("LSTM", steps=steps)
        simulation = simulate(layer.split(layer.program(), t=2))
        times.append(simulation.communication_s[0])
    each = 1e-4 + layer.batch * layer.hidden * 4 / 2 / 2e9
    assert times[1] - times[0] == pytest.approx(20 * each)
