"""The types and mixed interpreters, and the dispatch to the most precise implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.programs import parse
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, f32, i64

from distir.errors import DistIRError
from distir.interpreters.mixed import OnnxMixed, join
from distir.interpreters.types import TypesInterpreter, infer_types


def values(text: str, limit: int = 1024) -> dict[str, Any]:
    """What the mixed interpreter knows of each named value."""
    found: dict[str, Any] = {}

    def observe(value: Any, content: Any) -> None:
        found[value.name_hint] = content

    TypesInterpreter(parse(text), OnnxMixed(limit), observe).run_roots()
    return found


CHAIN = """
func.func @main(%x: tensor<6x4xf32>, %y: tensor<?x4xf32>) -> tensor<?x?xf32> {
  %shape = onnx.Shape(%x) : (tensor<6x4xf32>) -> tensor<2xi64>
  %count = onnx.Size(%x) : (tensor<6x4xf32>) -> tensor<i64>
  %last = onnx.Shape(%y) {start = 1 : i64} : (tensor<?x4xf32>) -> tensor<1xi64>
  %both = onnx.Shape(%y) : (tensor<?x4xf32>) -> tensor<2xi64>
  %minus = onnx.Constant() {value = dense<-1> : tensor<1xi64>} : () -> tensor<1xi64>
  %target = onnx.Concat(%last, %minus) {axis = 0 : i64} : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
  %z = onnx.Reshape(%x, %target) : (tensor<6x4xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  func.return %z : tensor<?x?xf32>
}
"""


def test_the_most_precise_implementation_is_taken() -> None:
    found = values(CHAIN)
    np.testing.assert_array_equal(found["shape"], [6, 4])
    assert found["count"] == 24
    np.testing.assert_array_equal(found["last"], [4])
    assert found["both"] == TensorType(i64, [2])
    np.testing.assert_array_equal(found["target"], [4, -1])
    assert found["z"] == TensorType(f32, [4, 6])


def test_large_values_stay_types() -> None:
    found = values(CHAIN, limit=1)
    np.testing.assert_array_equal(found["last"], [4])
    assert found["target"] == TensorType(i64, [2])


def test_join_keeps_what_all_calls_agree_on() -> None:
    one, two = np.array([1, 2]), np.array([1, 3])
    assert join(one, one.copy()) is one
    assert join(one, two) == TensorType(i64, [2])
    assert join(TensorType(f32, [2, 3]), TensorType(f32, [2, 4])) == TensorType(
        f32, [2, DYNAMIC_INDEX]
    )


def test_types_alone() -> None:
    types = infer_types(
        parse("""
    func.func @main(%x: tensor<6x4xf32>, %w: tensor<4x2xf32>) -> tensor<?x?xf32> {
      %y = onnx.MatMul(%x, %w) : (tensor<6x4xf32>, tensor<4x2xf32>) -> tensor<?x?xf32>
      func.return %y : tensor<?x?xf32>
    }""")
    )
    assert {v.name_hint: t for v, t in types.items()}["y"] == TensorType(f32, [6, 2])


def test_an_argument_without_a_size_is_named() -> None:
    with pytest.raises(DistIRError, match="shape of argument %x is unknown"):
        infer_types(
            parse("""
    func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      func.return %x : tensor<?xf32>
    }""")
        )


def test_results_that_depend_on_values_are_named() -> None:
    with pytest.raises(
        DistIRError, match=r"%n, the result of onnx\.NonZero, is unknown"
    ):
        infer_types(
            parse("""
    func.func @main(%x: tensor<3xf32>) -> tensor<1x?xi64> {
      %n = onnx.NonZero(%x) : (tensor<3xf32>) -> tensor<1x?xi64>
      func.return %n : tensor<1x?xi64>
    }""")
        )


def test_operands_that_do_not_fit_are_named() -> None:
    with pytest.raises(DistIRError, match=r"onnx\.MatMul %y cannot take operands"):
        infer_types(
            parse("""
    func.func @main(%x: tensor<6x4xf32>, %w: tensor<3x2xf32>) -> tensor<6x2xf32> {
      %y = onnx.MatMul(%x, %w) : (tensor<6x4xf32>, tensor<3x2xf32>) -> tensor<6x2xf32>
      func.return %y : tensor<6x2xf32>
    }""")
        )


def test_declared_types_that_are_wrong_are_named() -> None:
    with pytest.raises(DistIRError, match=r"onnx\.Relu %y has a result of type"):
        infer_types(
            parse("""
    func.func @main(%x: tensor<6xf32>) -> tensor<7xf32> {
      %y = onnx.Relu(%x) : (tensor<6xf32>) -> tensor<7xf32>
      func.return %y : tensor<7xf32>
    }""")
        )
