"""What `canonicalize-imported` makes of a program computes the same."""

from __future__ import annotations

import numpy as np
from support.programs import parse
from xdsl.context import Context

from distir.interpreters.reference import run_program
from distir.passes.canonicalize_imported import CanonicalizeImportedPass

PROGRAM = """
func.func @main(%x: tensor<7x4xf32>, %like: tensor<2xf16>)
    -> (tensor<7x4xf16>, tensor<3x4xf32>, tensor<1x4xf32>, tensor<7x2xf32>, tensor<7x4xf32>, tensor<7x4xf16>) {
  %i = onnx.Identity(%x) : (tensor<7x4xf32>) -> tensor<7x4xf32>
  %c = onnx.CastLike(%i, %like) : (tensor<7x4xf32>, tensor<2xf16>) -> tensor<7x4xf16>
  %c2 = onnx.Neg(%c) : (tensor<7x4xf16>) -> tensor<7x4xf16>
  %n = onnx.Constant() {value = dense<3> : tensor<i64>} : () -> tensor<i64>
  %rows = onnx.SplitToSequence(%i, %n) {axis = 0 : i64} : (tensor<7x4xf32>, tensor<i64>) -> !onnx.seq<tensor<?x4xf32>>
  %one = onnx.Constant() {value = dense<1> : tensor<i64>} : () -> tensor<i64>
  %last = onnx.Constant() {value = dense<-1> : tensor<i64>} : () -> tensor<i64>
  %a = onnx.SequenceAt(%rows, %one) : (!onnx.seq<tensor<?x4xf32>>, tensor<i64>) -> tensor<3x4xf32>
  %b = onnx.SequenceAt(%rows, %last) : (!onnx.seq<tensor<?x4xf32>>, tensor<i64>) -> tensor<1x4xf32>
  %sizes = onnx.Constant() {value = dense<[2, 2]> : tensor<2xi64>} : () -> tensor<2xi64>
  %columns = onnx.SplitToSequence(%x, %sizes) {axis = -1 : i64} : (tensor<7x4xf32>, tensor<2xi64>) -> !onnx.seq<tensor<7x2xf32>>
  %d = onnx.SequenceAt(%columns, %one) : (!onnx.seq<tensor<7x2xf32>>, tensor<i64>) -> tensor<7x2xf32>
  %e = onnx.Identity(%x) {dist.stop_gradient} : (tensor<7x4xf32>) -> tensor<7x4xf32>
  %two = onnx.SequenceConstruct(%c, %c2) : (tensor<7x4xf16>, tensor<7x4xf16>) -> !onnx.seq<tensor<7x4xf16>>
  %f = onnx.SequenceAt(%two, %last) : (!onnx.seq<tensor<7x4xf16>>, tensor<i64>) -> tensor<7x4xf16>
  func.return %c, %a, %b, %d, %e, %f : tensor<7x4xf16>, tensor<3x4xf32>, tensor<1x4xf32>, tensor<7x2xf32>, tensor<7x4xf32>, tensor<7x4xf16>
}
"""


def test_the_results_stay() -> None:
    module = parse(PROGRAM)
    x = np.random.default_rng(0).standard_normal((7, 4), np.float32)
    arguments = [x, np.zeros(2, np.float16)]
    expected = run_program(module, arguments)
    CanonicalizeImportedPass().apply(Context(), module)
    module.verify()
    names = {op.name for op in module.walk()}
    assert "onnx.Split" in names and "onnx.Cast" in names
    assert not names & {"onnx.CastLike", "onnx.SplitToSequence", "onnx.SequenceAt"}
    assert "onnx.SequenceConstruct" not in names
    for before, after in zip(expected, run_program(module, arguments), strict=True):
        np.testing.assert_array_equal(before, after, strict=True)
