"""Recurrent layers cost what their products of matrices cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import succeed, write_program
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Block

from distir.dialects.onnx import operator
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
    assert "4 cannot be split evenly by 3" in done.errors
