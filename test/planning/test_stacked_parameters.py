"""Parameters of layers in one stack, as loops over layers have them: rows are gathered."""

from __future__ import annotations

from typing import Any

import pytest

import distir
from distir.dialects.collective import AllGatherOp
from distir.dialects.tensors import shape_of
from distir.facade.model_program import ModelProgram
from distir.passes.differentiate import DifferentiatePass
from distir.text.parser import ProgramParser, new_context
from distir.tools.files import apply_passes

TEXT = """
func.func @main(
    %w: tensor<2x16x16xf32> {dist.role = "parameter", dist.name = "w"},
    %x: tensor<64x16xf32> {dist.role = "input", dist.name = "x"}
) -> (tensor<64x16xf32> {dist.name = "y"}) {
  %0 = onnx.Constant() {value = dense<[0]> : tensor<1xi64>} : () -> tensor<1xi64>
  %1 = onnx.Constant() {value = dense<[1]> : tensor<1xi64>} : () -> tensor<1xi64>
  %2 = onnx.Constant() {value = dense<[2]> : tensor<1xi64>} : () -> tensor<1xi64>
  %s = onnx.Constant() {value = dense<[16, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %a = onnx.Slice(%w, %0, %1, %0) : (tensor<2x16x16xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<1x16x16xf32>
  %b = onnx.Slice(%w, %1, %2, %0) : (tensor<2x16x16xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<1x16x16xf32>
  %c = onnx.Reshape(%a, %s) : (tensor<1x16x16xf32>, tensor<2xi64>) -> tensor<16x16xf32>
  %d = onnx.Reshape(%b, %s) : (tensor<1x16x16xf32>, tensor<2xi64>) -> tensor<16x16xf32>
  %h = onnx.MatMul(%x, %c) : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
  %r = onnx.Relu(%h) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %y = onnx.MatMul(%r, %d) : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
  func.return %y : tensor<64x16xf32>
}
"""


@pytest.mark.parametrize(("d", "t"), [(2, 1), (4, 1), (2, 2)])
def test_rows_of_a_stack_are_gathered(d: int, t: int) -> None:
    """
    The stack is not gathered, even if the axis divides the number of rows, and if
    tensor parallelism splits rows too.
    """
    module = ProgramParser(new_context(), TEXT).parse_module()
    options: dict[str, Any] = {
        "loss": "mse",
        "optimizer": "adamw",
        "learning_rate": 0.1,
    }
    apply_passes(module, DifferentiatePass(**options))
    step = ModelProgram(module)
    split = distir.distribute(step, cluster="cpu", d=d, t=t, zero=3)
    gathered = [
        shape_of(op.operands[0])
        for op in split.module.walk()
        if isinstance(op, AllGatherOp)
    ]
    assert (16, 16) in gathered and (2, 16, 16) not in gathered
    assert distir.check(step, split, seed=1, tolerance=1e-5)
