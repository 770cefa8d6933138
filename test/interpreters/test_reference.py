"""The reference interpreter against NumPy, for sequential and distributed programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import programs
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.interpreters.reference import run_program

MESH = """
device.mesh @m on @box <d = 2, t = 2> [0 to 4]
device.mesh @n on @box <d = 2, t = 2> [4 to 8]
device.mesh @one on @box <> [0]
"""


def parse(text: str) -> ModuleOp:
    return programs.parse(MESH + text)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_sequential_program_with_calls() -> None:
    module = parse("""
    func.func @layer(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> {
      %y = onnx.MatMul(%x, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %z = onnx.Relu(%y) : (tensor<2x4xf32>) -> tensor<2x4xf32>
      func.return %z : tensor<2x4xf32>
    }
    func.func @main(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
      %a = func.call @layer(%x, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %b = func.call @layer(%a, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      func.return %a, %b : tensor<2x4xf32>, tensor<2x4xf32>
    }
    """)
    x, w = numbers(2, 4), numbers(4, 4, seed=1)
    a, b = run_program(module, [x, w])
    np.testing.assert_allclose(a, np.maximum(x @ w, 0), rtol=1e-6)
    np.testing.assert_allclose(b, np.maximum(a @ w, 0), rtol=1e-6)
    (only,) = run_program(module, [x, w], "layer")
    np.testing.assert_array_equal(only, a)


def test_calls_may_nest_deeply() -> None:
    layers = "".join(
        f"""
    func.func @f{i}(%x: tensor<f32>) -> tensor<f32> {{
      %y = func.call @f{i + 1}(%x) : (tensor<f32>) -> tensor<f32>
      func.return %y : tensor<f32>
    }}"""
        for i in range(500)
    )
    module = parse(
        layers
        + """
    func.func @f500(%x: tensor<f32>) -> tensor<f32> {
      %y = onnx.Neg(%x) : (tensor<f32>) -> tensor<f32>
      func.return %y : tensor<f32>
    }"""
    )
    (y,) = run_program(module, [np.float32(2)], "f0")
    assert y == -2


def test_recursion_is_an_error() -> None:
    module = parse("""
    func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %y = func.call @main(%x) : (tensor<f32>) -> tensor<f32>
      func.return %y : tensor<f32>
    }""")
    with pytest.raises(DistIRError, match="in a circle"):
        run_program(module, [np.float32(2)])


def test_arguments_are_checked() -> None:
    module = parse("""
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      func.return %x : tensor<2xf32>
    }""")
    with pytest.raises(DistIRError, match="takes 1 arguments, got 0"):
        run_program(module, [])
    with pytest.raises(DistIRError, match=r"argument 'x' is float32\[3\]"):
        run_program(module, [numbers(3)])
    with pytest.raises(DistIRError, match=r"argument 'x' is float64\[2\]"):
        run_program(module, [np.zeros(2)])


def test_an_op_that_cannot_be_computed_is_named() -> None:
    module = parse("""
    func.func @main(%x: tensor<2xf32>, %i: tensor<1xi64>) -> tensor<1xf32> {
      %y = onnx.Gather(%x, %i) {scope = "embed"} : (tensor<2xf32>, tensor<1xi64>) -> tensor<1xf32>
      func.return %y : tensor<1xf32>
    }""")
    with pytest.raises(
        DistIRError, match=r"onnx.Gather %y \(in embed\) cannot be computed"
    ):
        run_program(module, [numbers(2), np.array([5])])


def test_column_then_row_split() -> None:
    """Megatron's scheme: one all-reduce for two matrix products."""
    module = parse("""
    #rep = #dist.layout<@m, [{d}, {}]>
    #w = #dist.layout<@m>
    #col = #dist.layout<@m, [{}, {t}]>
    #row = #dist.layout<@m, [{t}, {}]>
    #h = #dist.layout<@m, [{d}, {t}]>
    #part = #dist.layout<@m, [{d}, {}], partial sum {t}>
    func.func @main(%x: tensor<4x6xf32, #rep>, %a: tensor<6x8xf32, #col>, %b: tensor<8x2xf32, #row>) -> tensor<4x2xf32, #rep> {
      %h = onnx.MatMul(%x, %a) : (tensor<4x6xf32, #rep>, tensor<6x8xf32, #col>) -> tensor<4x8xf32, #h>
      %r = onnx.Relu(%h) : (tensor<4x8xf32, #h>) -> tensor<4x8xf32, #h>
      %p = onnx.MatMul(%r, %b) : (tensor<4x8xf32, #h>, tensor<8x2xf32, #row>) -> tensor<4x2xf32, #part>
      %y = collective.all_reduce %p over [t] : tensor<4x2xf32, #part> -> tensor<4x2xf32, #rep>
      func.return %y : tensor<4x2xf32, #rep>
    }""")
    x, a, b = numbers(4, 6), numbers(6, 8, seed=1), numbers(8, 2, seed=2)
    (y,) = run_program(module, [x, a, b])
    np.testing.assert_allclose(y, np.maximum(x @ a, 0) @ b, rtol=1e-5, atol=1e-6)


def test_a_wrong_layout_is_not_silent() -> None:
    """The product is partial over `t`, but its type says that it is whole."""
    module = parse("""
    #whole = #dist.layout<@m>
    #col = #dist.layout<@m, [{}, {t}]>
    #row = #dist.layout<@m, [{t}, {}]>
    func.func @main(%x: tensor<4x8xf32, #col>, %b: tensor<8x2xf32, #row>) -> tensor<4x2xf32, #whole> {
      %p = onnx.MatMul(%x, %b) : (tensor<4x8xf32, #col>, tensor<8x2xf32, #row>) -> tensor<4x2xf32, #whole>
      func.return %p : tensor<4x2xf32, #whole>
    }""")
    with pytest.raises(
        DistIRError, match=r"onnx\.MatMul %p: devices that hold the same part"
    ):
        run_program(module, [numbers(4, 8), numbers(8, 2)])


def test_sends_and_rooted_collectives() -> None:
    module = parse("""
    #split = #dist.layout<@m, [{d}, {}]>
    #other = #dist.layout<@n, [{d}, {}]>
    #rows = #dist.layout<@m, [{d, t}, {}]>
    #one = #dist.layout<@one>
    #part = #dist.layout<@m, partial sum {d, t}>
    func.func @main(%x: tensor<4x2xf32, #split>) -> (tensor<4x2xf32, #other>, tensor<4x2xf32, #rows>, tensor<4x2xf32, #one>) {
      %s = dist.send %x : tensor<4x2xf32, #split> -> tensor<4x2xf32, #other>
      %r = dist.reshard %x : tensor<4x2xf32, #split> -> tensor<4x2xf32, #rows>
      %g = collective.gather %r over [d, t] : tensor<4x2xf32, #rows> -> tensor<4x2xf32, #one>
      %b = collective.scatter %g over [d, t] : tensor<4x2xf32, #one> -> tensor<4x2xf32, #rows>
      func.return %s, %b, %g : tensor<4x2xf32, #other>, tensor<4x2xf32, #rows>, tensor<4x2xf32, #one>
    }""")
    x = numbers(4, 2)
    for y in run_program(module, [x]):
        np.testing.assert_array_equal(y, x)


def test_permute_rolls_by_whole_shards() -> None:
    module = parse("""
    #split = #dist.layout<@m, [{d, t}]>
    func.func @main(%x: tensor<8xf32, #split>) -> tensor<8xf32, #split> {
      %y = collective.permute %x over [t] : tensor<8xf32, #split> -> tensor<8xf32, #split>
      func.return %y : tensor<8xf32, #split>
    }""")
    x = np.arange(8, dtype=np.float32)
    (y,) = run_program(module, [x])
    np.testing.assert_array_equal(y, [2, 3, 0, 1, 6, 7, 4, 5])


def test_programs_of_one_rank_are_refused() -> None:
    module = parse("""
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %y = collective.rank.all_reduce %x over [t] {group = array<i64: 0, 1>, reduction = "sum"} : tensor<2xf32> -> tensor<2xf32>
      func.return %y : tensor<2xf32>
    }""")
    with pytest.raises(DistIRError, match="belongs to the program of one rank"):
        run_program(module, [numbers(2)])


def test_sequences_in_a_distributed_program() -> None:
    module = parse("""
    #whole = #dist.layout<@m>
    func.func @main(%x: tensor<4x2xf32, #whole>) -> tensor<2x2xf32, #whole> {
      %n = onnx.Constant() {value = dense<2> : tensor<i64>} : () -> tensor<i64, #whole>
      %one = onnx.Constant() {value = dense<1> : tensor<i64>} : () -> tensor<i64, #whole>
      %s = onnx.SplitToSequence(%x, %n) {axis = 0 : i64} : (tensor<4x2xf32, #whole>, tensor<i64, #whole>) -> !onnx.seq<tensor<2x2xf32>>
      %y = onnx.SequenceAt(%s, %one) : (!onnx.seq<tensor<2x2xf32>>, tensor<i64, #whole>) -> tensor<2x2xf32, #whole>
      func.return %y : tensor<2x2xf32, #whole>
    }""")
    x = numbers(4, 2)
    (y,) = run_program(module, [x])
    np.testing.assert_array_equal(y, x[2:])
