"""Sums of gradients in products, and scales of 8-bit floats from earlier steps: prices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cost_programs import parse

from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.profiles.files import load_profile
from distir.interpreters.simulator.profiles.profile import Dispatch

SIZE = 4096
MATRIX = f"tensor<{SIZE}x{SIZE}x"
SCALED = f"""
  device.mesh @m on @dgx_h100 <d = 8> [0 to 8]
  func.func @main(%x: {MATRIX}bf16, #dist.layout<@m, [{{d}}, {{}}]>>) -> {MATRIX}!onnx.element<"float8e4m3fn">, #dist.layout<@m, [{{d}}, {{}}]>> {{
    %part = train.float8_scale %x {{format = "e4m3"}} : ({MATRIX}bf16, #dist.layout<@m, [{{d}}, {{}}]>>) -> tensor<f32, #dist.layout<@m, partial min {{d}}>>
    %scale = collective.all_reduce %part over [d] : tensor<f32, #dist.layout<@m, partial min {{d}}>> -> tensor<f32, #dist.layout<@m>>
    %y = train.to_float8 %x, %scale : ({MATRIX}bf16, #dist.layout<@m, [{{d}}, {{}}]>>, tensor<f32, #dist.layout<@m>>) -> {MATRIX}!onnx.element<"float8e4m3fn">, #dist.layout<@m, [{{d}}, {{}}]>>
    func.return %y : {MATRIX}!onnx.element<"float8e4m3fn">, #dist.layout<@m, [{{d}}, {{}}]>>
  }}"""
ADDED = f"""
  func.func @main(%sum: {MATRIX}f32>, %x: {MATRIX}bf16>, %dy: {MATRIX}bf16>) -> {MATRIX}f32> {{
    %g = onnx.Gemm(%x, %dy) {{transA = 1 : i64}} : ({MATRIX}bf16>, {MATRIX}bf16>) -> {MATRIX}bf16>
    %wide = onnx.Cast(%g) {{to = 1 : i64}} : ({MATRIX}bf16>) -> {MATRIX}f32>
    %new = onnx.Add(%sum, %wide) : ({MATRIX}f32>, {MATRIX}f32>) -> {MATRIX}f32>
    func.return %new : {MATRIX}f32>
  }}"""


def seconds(text: str, *fusions: str) -> float:
    """Returns the time of a program on H100s whose software knows these fusions."""
    profile = replace(
        load_profile("H100"), fusion=frozenset(fusions), dispatch=Dispatch()
    )
    found = simulate(parse(text), load_cluster("dgx-h100"), profiles=[profile])
    return found.step_time_s


def test_scales_of_earlier_steps_take_no_time():
    profile = load_profile("H100")
    moved = SIZE * SIZE / 8 * 3  # 2 bytes are read of each element, 1 is written
    curve = profile.curve("bf16", "elementwise")
    rounding = curve.overhead + moved / (3.35e12 * curve.bandwidth)
    assert seconds(SCALED, "scales") == pytest.approx(rounding, rel=0.01)
    overhead = profile.links["nvlink"].overhead
    assert seconds(SCALED) > rounding + overhead


def test_a_product_adds_to_a_sum():
    """The sum is read and written; the gradient is not cast."""
    product, _ = ADDED.split("    %wide")
    product = product.replace(f"-> {MATRIX}f32>", f"-> {MATRIX}bf16>")
    alone = seconds(f"{product}    func.return %g : {MATRIX}bf16>\n  }}")
    curve = load_profile("H100").curve("f32", "elementwise")
    moved = 2 * 4 * SIZE * SIZE / (3.35e12 * curve.bandwidth)
    added = seconds(ADDED, "accumulation")
    assert added == pytest.approx(alone + curve.overhead + moved)
    assert added < seconds(ADDED, "buckets") < seconds(ADDED)
