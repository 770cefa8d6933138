"""The part of a program that some results need computes these, and holds nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import parse

from distir.interpreters.reference import run_program
from distir.program import functions
from distir.transforms.slicing import sliced

PROGRAM = """
func.func private @two(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b = onnx.Neg(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %b : tensor<4xf32>, tensor<4xf32>
}
func.func private @one(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = onnx.Exp(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %a : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32> {dist.name = "x"}, %y: tensor<4xf32> {dist.name = "y"})
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a, %b = func.call @two(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %c = func.call @one(%y) : (tensor<4xf32>) -> tensor<4xf32>
  %d = onnx.Add(%a, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %d, %c, %b : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
"""


@pytest.mark.parametrize(
    ("results", "names", "ops"),
    [
        ([0], ["two", "main"], 6),
        ([1], ["one", "main"], 4),
        ([2, 0], ["two", "main"], 6),
        ([0, 1, 2], ["two", "one", "main"], 9),
    ],
)
def test_it_gives_the_same_results(
    results: list[int], names: list[str], ops: int
) -> None:
    module = parse(PROGRAM)
    text = str(module)
    part = sliced(module, results)
    part.verify()
    assert str(module) == text
    assert list(functions(part)) == names
    count = sum(len(f.body.block.ops) for f in functions(part).values())
    assert count == ops
    x = np.random.default_rng(0).standard_normal((2, 4), np.float32)
    whole = run_program(module, list(x))
    for i, value in zip(results, run_program(part, list(x)), strict=True):
        np.testing.assert_array_equal(value, whole[i], strict=True)
