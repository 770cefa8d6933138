"""Programs with sizes that depend on data: what runs, and what is refused with the reason."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.programs import parse
from xdsl.context import Context

import distir
from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.passes.differentiate import DifferentiatePass
from distir.passes.inline_calls import InlineCallsPass
from distir.program import entry_function, functions, return_op
from distir.program.unknown_sizes import origin_of_unknown
from distir.sharding.layout import layout_problem
from distir.sharding.mesh import Mesh

CHOSEN = """
func.func @main(%x: tensor<4x6xf32> {dist.name = "x"},
    %w: tensor<2x6xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<?x6xf32> {dist.name = "y"}) {
  %places = onnx.NonZero(%x) {scope = "choose"} : (tensor<4x6xf32>) -> tensor<2x?xi64>
  %columns = onnx.Transpose(%places) {perm = [1 : i64, 0 : i64]} : (tensor<2x?xi64>) -> tensor<?x2xi64>
  %rows = onnx.Cast(%columns) {to = 1 : i64} : (tensor<?x2xi64>) -> tensor<?x2xf32>
  %y = func.call @layer(%rows, %w) : (tensor<?x2xf32>, tensor<2x6xf32>) -> tensor<?x6xf32>
  func.return %y : tensor<?x6xf32>
}
func.func private @layer(%rows: tensor<?x2xf32>, %w: tensor<2x6xf32>) -> tensor<?x6xf32> {
  %product = onnx.MatMul(%rows, %w) : (tensor<?x2xf32>, tensor<2x6xf32>) -> tensor<?x6xf32>
  %y = onnx.Relu(%product) : (tensor<?x6xf32>) -> tensor<?x6xf32>
  func.return %y : tensor<?x6xf32>
}
"""
WHY = r"its sizes depend on what onnx.NonZero %places \(in choose\) is given"


@pytest.fixture
def called(tmp_path: Path) -> Path:
    path = tmp_path / "called.mlir"
    path.write_text(CHOSEN)
    return path


@pytest.fixture
def inlined(tmp_path: Path) -> Path:
    path, module = tmp_path / "inlined.mlir", parse(CHOSEN)
    InlineCallsPass().apply(Context(), module)
    path.write_text(str(module))
    return path


def test_where_a_size_comes_from():
    module = parse(CHOSEN)
    for function in (entry_function(module), functions(module)["layer"]):
        (y,) = return_op(function).operands
        assert re.match(WHY, origin_of_unknown(y))
    given = parse(CHOSEN.replace("tensor<4x6xf32>", "tensor<?x6xf32>"))
    (y,) = return_op(entry_function(given)).operands
    assert "argument 'x' has dimensions of unknown size" in origin_of_unknown(y)


def test_distributed_programs_compute_the_same(inlined: Path):
    # The sizes that -9223372036854775808 stands for must not be split.
    dist = distir.distribute(inlined, cluster="cpu", d=2)
    x = np.array([[0, 1, 0, 0, 2, 0]] * 3 + [[0] * 6], np.float32)
    comparison = distir.check(inlined, dist, inputs={"x": x})
    assert [each.absolute for each in comparison.outputs] == [0]


def test_what_needs_fixed_sizes_says_why(inlined: Path, called: Path):
    with pytest.raises(DistIRError, match=f"cannot simulate .*: {WHY}"):
        distir.simulate(inlined, cluster="cpu")
    with pytest.raises(DistIRError, match=f"@layer has an argument .*: {WHY}"):
        distir.distribute(called, cluster="cpu", d=2)
    with pytest.raises(DistIRError, match=f"needs fixed sizes, but .*: {WHY}"):
        DifferentiatePass(loss="mse").apply(Context(), parse(inlined.read_text()))


def test_unknown_sizes_are_not_split():
    mesh = Mesh("mesh", (("d", 2),), (0, 1))
    problem = layout_problem((-(2**63), 6), Layout("mesh", ((Shard("d"),), ())), mesh)
    assert problem is not None and "no known size" in problem
