"""Random arguments."""

import numpy as np
import pytest
from support.programs import parse

from distir.errors import DistIRError
from distir.interpreters.inputs import PARAMETER_SCALE, random_arguments
from distir.interpreters.reference import run_program

LOOKUP = """
func.func @embed(%table: tensor<5x4xf32>, %ids: tensor<2x3xi64>) -> tensor<2x3x4xf32> {
  %y = onnx.Gather(%table, %ids) {axis = 0 : i64} : (tensor<5x4xf32>, tensor<2x3xi64>) -> tensor<2x3x4xf32>
  func.return %y : tensor<2x3x4xf32>
}
func.func @main(
    %wte: tensor<5x4xf32> {dist.name = "wte", dist.role = "parameter"},
    %ids: tensor<6xi64> {dist.name = "ids"},
    %mask: tensor<4x8xi64> {dist.name = "mask"},
    %keep: tensor<2xi1> {dist.name = "keep"}) -> tensor<2x3x4xf32> {
  %shape = onnx.Constant() {value = dense<[2, 3]> : tensor<2xi64>} : () -> tensor<2xi64>
  %two = onnx.Reshape(%ids, %shape) : (tensor<6xi64>, tensor<2xi64>) -> tensor<2x3xi64>
  %y = func.call @embed(%wte, %two) : (tensor<5x4xf32>, tensor<2x3xi64>) -> tensor<2x3x4xf32>
  func.return %y : tensor<2x3x4xf32>
}
"""


def test_values_fit_their_use() -> None:
    module = parse(LOOKUP)
    drawn: set[int] = set()
    for seed in range(20):
        wte, ids, mask, keep = random_arguments(module, seed)
        drawn.update(ids.tolist())
        run_program(module, [wte, ids, mask, keep])
    assert drawn == set(range(5))
    assert np.abs(wte).max() < 6 * PARAMETER_SCALE
    assert mask[0].all() and not mask[1, 6:].any() and mask[:, :6].all()
    assert keep.dtype == np.bool_ and keep.all()


def test_a_training_step_gets_labels_and_states_that_it_can_use() -> None:
    module = parse("""
    func.func @main(
        %logits: tensor<64x7xf32> {dist.name = "x", dist.role = "input"},
        %labels: tensor<64xi64> {dist.name = "labels", dist.role = "label"},
        %average: tensor<64xf32> {dist.name = "w.exp_avg_sq", dist.role = "state"}) -> tensor<f32> {
      %loss = train.cross_entropy %logits, %labels : (tensor<64x7xf32>, tensor<64xi64>) -> tensor<f32>
      func.return %loss : tensor<f32>
    }
    """)
    _, labels, average = random_arguments(module, 0)
    assert set(labels.tolist()) == set(range(7))
    assert (average >= 0).all() and average.any()


def test_values_depend_on_seed_and_name_alone() -> None:
    first = random_arguments(parse(LOOKUP), 1)
    again = random_arguments(parse(LOOKUP), 1)
    other = random_arguments(parse(LOOKUP), 2)
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[0] != other[0]).any()
    renamed = random_arguments(parse(LOOKUP.replace('"wte"', '"wpe"')), 1)
    assert (first[0] != renamed[0]).any()
    np.testing.assert_array_equal(first[1], renamed[1])


def test_weights_come_first() -> None:
    table = np.ones((5, 4), np.float32)
    assert (random_arguments(parse(LOOKUP), 0, {"wte": table})[0] == 1).all()


def test_a_dynamic_dimension_is_an_error() -> None:
    module = parse("""
    func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> {
      func.return %x : tensor<?x2xf32>
    }""")
    with pytest.raises(DistIRError, match=r"argument 'x' has no fixed size"):
        random_arguments(module, 0)
