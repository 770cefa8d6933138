"""Parameters of layers in one stack, as loops over layers have them: rows are gathered."""

from __future__ import annotations

from typing import Any

import pytest

import distir
from distir.dialects.collective import AllGatherOp, AllReduceOp, ReduceScatterOp
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


STEP = """
func.func @main(
    %w: tensor<2x16x16xf64> {dist.role = "parameter", dist.name = "w"},
    %m: tensor<2x16x16xf64> {dist.role = "state", dist.name = "m", dist.of = "w"},
    %v: tensor<2x16x16xf64> {dist.role = "state", dist.name = "v", dist.of = "w"},
    %x: tensor<64x16xf32> {dist.role = "input", dist.name = "x"}
) -> (
    tensor<2x16x16xf64> {dist.name = "new_w", dist.updates = "w"},
    tensor<2x16x16xf64> {dist.name = "new_m", dist.updates = "m"},
    tensor<2x16x16xf64> {dist.name = "new_v", dist.updates = "v"}
) {
  %0 = onnx.Constant() {value = dense<[0]> : tensor<1xi64>} : () -> tensor<1xi64>
  %1 = onnx.Constant() {value = dense<[1]> : tensor<1xi64>} : () -> tensor<1xi64>
  %2 = onnx.Constant() {value = dense<[2]> : tensor<1xi64>} : () -> tensor<1xi64>
  %s = onnx.Constant() {value = dense<[16, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %r = onnx.Constant() {value = dense<[1, 16, 16]> : tensor<3xi64>} : () -> tensor<3xi64>
  %tenth = onnx.Constant() {value = dense<0.1> : tensor<f64>} : () -> tensor<f64>
  %a0 = onnx.Slice(%w, %0, %1, %0) : (tensor<2x16x16xf64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<1x16x16xf64>
  %b0 = onnx.Slice(%w, %1, %2, %0) : (tensor<2x16x16xf64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<1x16x16xf64>
  %a1 = onnx.Reshape(%a0, %s) : (tensor<1x16x16xf64>, tensor<2xi64>) -> tensor<16x16xf64>
  %b1 = onnx.Reshape(%b0, %s) : (tensor<1x16x16xf64>, tensor<2xi64>) -> tensor<16x16xf64>
  %a = onnx.Cast(%a1) {to = 1 : i64} : (tensor<16x16xf64>) -> tensor<16x16xf32>
  %b = onnx.Cast(%b1) {to = 1 : i64} : (tensor<16x16xf64>) -> tensor<16x16xf32>
  %h = onnx.MatMul(%x, %a) : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
  %y = onnx.MatMul(%h, %b) : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
  %ht = onnx.Transpose(%h) {perm = [1, 0]} : (tensor<64x16xf32>) -> tensor<16x64xf32>
  %xt = onnx.Transpose(%x) {perm = [1, 0]} : (tensor<64x16xf32>) -> tensor<16x64xf32>
  %bt = onnx.Transpose(%b) {perm = [1, 0]} : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %db = onnx.MatMul(%ht, %y) : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
  %dh = onnx.MatMul(%y, %bt) : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
  %da = onnx.MatMul(%xt, %dh) : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
  %da1 = onnx.Cast(%da) {to = 11 : i64} : (tensor<16x16xf32>) -> tensor<16x16xf64>
  %db1 = onnx.Cast(%db) {to = 11 : i64} : (tensor<16x16xf32>) -> tensor<16x16xf64>
  %da2 = onnx.Reshape(%da1, %r) : (tensor<16x16xf64>, tensor<3xi64>) -> tensor<1x16x16xf64>
  %db2 = onnx.Reshape(%db1, %r) : (tensor<16x16xf64>, tensor<3xi64>) -> tensor<1x16x16xf64>
  %g = onnx.Concat(%da2, %db2) {axis = 0 : i64} : (tensor<1x16x16xf64>, tensor<1x16x16xf64>) -> tensor<2x16x16xf64>
  %g1 = onnx.Mul(%g, %tenth) : (tensor<2x16x16xf64>, tensor<f64>) -> tensor<2x16x16xf64>
  %m1 = onnx.Add(%m, %g1) : (tensor<2x16x16xf64>, tensor<2x16x16xf64>) -> tensor<2x16x16xf64>
  %g2 = onnx.Mul(%g, %g) : (tensor<2x16x16xf64>, tensor<2x16x16xf64>) -> tensor<2x16x16xf64>
  %v1 = onnx.Add(%v, %g2) : (tensor<2x16x16xf64>, tensor<2x16x16xf64>) -> tensor<2x16x16xf64>
  %w1 = onnx.Sub(%w, %m1) : (tensor<2x16x16xf64>, tensor<2x16x16xf64>) -> tensor<2x16x16xf64>
  func.return %w1, %m1, %v1 : tensor<2x16x16xf64>, tensor<2x16x16xf64>, tensor<2x16x16xf64>
}
"""


@pytest.mark.parametrize(("d", "t"), [(2, 1), (4, 1), (2, 2)])
def test_gradients_of_rows_are_scattered(d: int, t: int) -> None:
    """
    Each gradient is scattered where it is computed, in its narrow type, and not reduced
    as a whole: neither the row nor the stack of rows that the optimizer takes.
    """
    step = ModelProgram(ProgramParser(new_context(), STEP).parse_module())
    split = distir.distribute(step, cluster="cpu", d=d, t=t, zero=3)
    over_d = [
        op
        for op in split.module.walk()
        if isinstance(op, AllReduceOp | ReduceScatterOp) and "d" in op.axis_names
    ]
    assert {type(op) for op in over_d} == {ReduceScatterOp}
    assert [str(op.result.type)[:16] for op in over_d] == ["tensor<16x16xf32"] * 2
    assert distir.check(step, split, seed=1, tolerance=1e-5)
