"""A constant stays one for the rules of ops that ask for its value, whatever its layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.programs import parse
from xdsl.context import Context

from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.lowering.torch_package import write_package
from distir.passes.partition import PartitionPass
from distir.passes.propagate_sharding import PropagateShardingPass
from distir.sharding.verification import verify_distribution

MESH = "device.mesh @mesh on @c <x = 2, y = 2> [0 to 4]"
LAYOUT = ", dist.layout = #dist.layout<@mesh, [{}, {y}]>"
I2 = "tensor<2xi64>"
# The op, with %k for the constant that is constrained; the constant; the result's type.
CASES = {
    "Slice": (
        f"onnx.Slice(%a, %zeros, %ends, %axes, %k) : (T, {', '.join([I2] * 4)})",
        "[1, 1]",
        "2x4",
    ),
    "Reshape": (f"onnx.Reshape(%a, %k) : (T, {I2})", "[2, 8]", "2x8"),
    "ReduceSum": (f"onnx.ReduceSum(%a, %k) : (T, {I2})", "[0, 1]", "1x1"),
    "Expand": (f"onnx.Expand(%a, %k) : (T, {I2})", "[4, 4]", "4x4"),
}


def program(name: str, constrained: bool) -> str:
    op, constant, shape = CASES[name]
    op = op.replace("T", "tensor<4x4xf32>")
    if not constrained:
        op = op.replace("%k", "%c")
    layout = LAYOUT if constrained else ""
    request = f"%k = dist.constrain %c to <@mesh, [{{x}}]> : {I2} -> {I2}"
    return f"""
{MESH if constrained else ""}
func.func @main(%a: tensor<4x4xf32> {{dist.role = "input", dist.name = "a"{layout}}}) -> tensor<{shape}xf32> {{
  %zeros = onnx.Constant() {{value = dense<0> : {I2}}} : () -> {I2}
  %ends = onnx.Constant() {{value = dense<[2, 4]> : {I2}}} : () -> {I2}
  %axes = onnx.Constant() {{value = dense<[0, 1]> : {I2}}} : () -> {I2}
  %c = onnx.Constant() {{value = dense<{constant}> : {I2}}} : () -> {I2}
  {request if constrained else ""}
  %y = {op} -> tensor<{shape}xf32>
  func.return %y : tensor<{shape}xf32>
}}"""


@pytest.mark.parametrize("name", CASES)
def test_constraint_on_a_constant(name: str, tmp_path: Path):
    module = parse(program(name, constrained=True))
    PropagateShardingPass().apply(Context(), module)
    PartitionPass().apply(Context(), module)
    verify_distribution(module)
    a = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    sequential = parse(program(name, constrained=False))
    (expected,), (result,) = run_program(sequential, [a]), run_program(module, [a])
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    write_package(module, tmp_path)  # emitters ask for the constants too


def test_collectives_on_a_constant_do_not_hide_it():
    """As someone may write it."""
    whole, split = "#dist.layout<@mesh>", "#dist.layout<@mesh, [{x}]>"
    t = "tensor<4x4xf32, #dist.layout<@mesh, [{}, {y}]>>"
    w, s = f"tensor<2xi64, {whole}>", f"tensor<2xi64, {split}>"
    text = f"""
{MESH}
func.func @main(%a: {t}) -> {t.replace("4x4", "2x4")} {{
  %zeros = onnx.Constant() {{value = dense<0> : {I2}}} : () -> {w}
  %ends = onnx.Constant() {{value = dense<[2, 4]> : {I2}}} : () -> {w}
  %axes = onnx.Constant() {{value = dense<[0, 1]> : {I2}}} : () -> {w}
  %c = onnx.Constant() {{value = dense<1> : {I2}}} : () -> {w}
  %part = collective.slice %c over [x] : {w} -> {s}
  %k = collective.all_gather %part over [x] : {s} -> {w}
  %y = onnx.Slice(%a, %zeros, %ends, %axes, %k) : ({t}, {w}, {w}, {w}, {w}) -> {t.replace("4x4", "2x4")}
  func.return %y : {t.replace("4x4", "2x4")}
}}"""
    module = parse(text)
    verify_distribution(module)
    a = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run_program(module, [a])[0], a[:2])


def test_a_ring_shift_gives_another_constant():
    t = "tensor<4x4xf32, #dist.layout<@mesh, [{}, {y}]>>"
    text = f"""
{MESH}
func.func @main(%a: {t}) -> {t} {{
  %c = onnx.Constant() {{value = dense<[0, 1]> : {I2}}} : () -> tensor<2xi64, #dist.layout<@mesh>>
  %part = collective.slice %c over [x] : tensor<2xi64, #dist.layout<@mesh>> -> tensor<2xi64, #dist.layout<@mesh, [{{x}}]>>
  %k = collective.permute %part over [x] : tensor<2xi64, #dist.layout<@mesh, [{{x}}]>> -> tensor<2xi64, #dist.layout<@mesh, [{{x}}]>>
  func.return %a : {t}
}}"""
    from distir.dialects.constants import constant_of
    from distir.program import entry_function

    _, part, shifted, _ = entry_function(parse(text)).body.block.ops
    found = constant_of(part.results[0])
    assert found is not None and found.tolist() == [0, 1]
    assert constant_of(shifted.results[0]) is None


def test_ops_that_differ_in_a_constant_behind_collectives_are_told_apart():
    """The sums of columns are split, those of rows are partial: the second is wrong."""
    t = "tensor<4x4xf32, #dist.layout<@mesh, [{}, {y}]>>"
    sums = "tensor<4xf32, #dist.layout<@mesh, [{y}]>>"
    w, s = (f"tensor<1xi64, #dist.layout<@mesh{dims}>>" for dims in ("", ", [{one}]"))

    def total(axis: int) -> str:
        return f"""
  %c{axis} = onnx.Constant() {{value = dense<{axis}> : tensor<1xi64>}} : () -> {w}
  %s{axis} = collective.slice %c{axis} over [one] : {w} -> {s}
  %g{axis} = collective.all_gather %s{axis} over [one] : {s} -> {w}
  %y{axis} = onnx.ReduceSum(%a, %g{axis}) {{keepdims = 0 : i64}} : ({t}, {w}) -> {sums}"""

    text = f"""
device.mesh @mesh on @c <one = 1, y = 2> [0 to 2]
func.func @main(%a: {t}) -> ({sums}, {sums}) {{{total(0)}{total(1)}
  func.return %y0, %y1 : {sums}, {sums}
}}"""
    with pytest.raises(DistIRError, match=r"onnx.ReduceSum %y1.*expected layout"):
        verify_distribution(parse(text))


def test_a_mode_behind_a_send_is_still_known() -> None:
    """Dropout that is off draws nothing, also where a pipeline sent it the mode."""
    there = "tensor<i1, #dist.layout<@other>>"
    here, t = "tensor<i1, #dist.layout<@mesh>>", "tensor<4xf32, #dist.layout<@mesh>>"
    text = f"""
{MESH}
device.mesh @other on @c <x = 2, y = 2> [4 to 8]
func.func @main(%a: {t}) -> {t} {{
  %ratio = onnx.Constant() {{value = dense<0.5> : tensor<f32>}} : () -> tensor<f32, #dist.layout<@mesh>>
  %off = onnx.Constant() {{value = dense<false> : tensor<i1>}} : () -> {there}
  %mode = dist.send %off : {there} -> {here}
  %y = onnx.Dropout(%a, %ratio, %mode) : ({t}, tensor<f32, #dist.layout<@mesh>>, {here}) -> {t}
  func.return %y : {t}
}}"""
    verify_distribution(parse(text))
