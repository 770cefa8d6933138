"""Sums of gradients in products, and scales of 8-bit floats from earlier steps: prices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cost_programs import parse

from distir.hardware import load_cluster
from distir.interpreters.simulator import Simulation, simulate
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


def simulated(text: str, *fusions: str) -> Simulation:
    """Returns the simulation of a program on H100s whose software knows these fusions."""
    profile = replace(
        load_profile("H100"), fusion=frozenset(fusions), dispatch=Dispatch()
    )
    return simulate(parse(text), load_cluster("dgx-h100"), profiles=[profile])


def seconds(text: str, *fusions: str) -> float:
    """Returns the time of a program on H100s whose software knows these fusions."""
    return simulated(text, *fusions).step_time_s


def test_scales_of_earlier_steps_take_no_time():
    profile = load_profile("H100")
    moved = SIZE * SIZE / 8 * 3  # 2 bytes are read of each element, 1 is written
    curve = profile.curve("bf16", "elementwise")
    rounding = curve.overhead + moved / (3.35e12 * curve.bandwidth)
    assert seconds(SCALED, "scales") == pytest.approx(rounding, rel=0.01)
    overhead = profile.links["nvlink"].overhead
    assert seconds(SCALED) > rounding + overhead


GIVEN, WHOLE = (
    f"{MATRIX}f32, #dist.layout<@m, partial sum {{d}}>>",
    f"{MATRIX}f32, #dist.layout<@m>>",
)
SUMMED = f"""
  device.mesh @m on @dgx_h100 <d = 8> [0 to 8]
  func.func @main(%g: {GIVEN}) -> {WHOLE} {{
    %sum = collective.all_reduce %g over [d] {{dist.asynchronous}} : {GIVEN} -> {WHOLE}
    func.return %sum : {WHOLE}
  }}"""


def test_no_device_waits_for_scales_of_earlier_steps():
    """Not even behind a sum of gradients that is on its way: the rounding runs beside it."""
    head, line, end = SUMMED.partition("    %sum = ")
    line += end.split("\n")[0] + "\n"
    body = SCALED.partition("{\n")[2].rpartition("    func.return")[0]
    x = f"{MATRIX}bf16, #dist.layout<@m, [{{d}}, {{}}]>>"
    head = head.replace("(%g", f"(%x: {x}, %g")
    both = f"{head}{line}{body}    func.return %sum : {WHOLE}\n  }}"
    assert seconds(both, "scales") == pytest.approx(seconds(SUMMED))
    assert seconds(both) > seconds(SUMMED) + seconds(SCALED, "scales")


def test_a_product_adds_to_a_sum():
    """
    The product's kernel reads and writes the sum while it multiplies, which takes no time
    of its own where the multiplications take longer. Nothing is cast.
    """
    product, _ = ADDED.split("    %wide")
    product = product.replace(f"-> {MATRIX}f32>", f"-> {MATRIX}bf16>")
    alone = seconds(f"{product}    func.return %g : {MATRIX}bf16>\n  }}")
    added = seconds(ADDED, "accumulation")
    assert added == pytest.approx(alone)
    assert added < seconds(ADDED, "buckets") < seconds(ADDED)


def test_a_sum_of_few_products_takes_the_time_of_its_bytes():
    few = ADDED.replace(f"%x: {MATRIX}bf16>", f"%x: tensor<64x{SIZE}xbf16>").replace(
        f"%dy: {MATRIX}bf16>", f"%dy: tensor<64x{SIZE}xbf16>"
    )
    rows = f"tensor<64x{SIZE}xbf16>"
    few = few.replace(f"({MATRIX}bf16>, {MATRIX}bf16>)", f"({rows}, {rows})")
    curve = load_profile("H100").curve("bf16", "contraction")
    moved = 2 * 4 * SIZE * SIZE + 2 * 2 * 64 * SIZE
    expected = curve.overhead + moved / (3.35e12 * curve.bandwidth)
    assert seconds(few, "accumulation") == pytest.approx(expected)


def test_a_sum_that_devices_reduce_at_once_is_made_by_the_product_too():
    """As in the last micro-batch, where communication overlaps."""
    type_ = f"{MATRIX}f32, #dist.layout<@m, partial sum {{d}}>>"
    whole = f"{MATRIX}f32, #dist.layout<@m>>"
    x = f"{MATRIX}bf16, #dist.layout<@m, [{{}}, {{d}}]>>"
    dy = f"{MATRIX}bf16, #dist.layout<@m, [{{d}}, {{}}]>>"
    y = f"{MATRIX}bf16, #dist.layout<@m, partial sum {{d}}>>"

    def computing(end: str, result: str, *fusions: str) -> float:
        text = f"""
  device.mesh @m on @dgx_h100 <d = 8> [0 to 8]
  func.func @main(%sum: {type_}, %x: {x}, %dy: {dy}) -> {result} {{
    %g = onnx.MatMul(%x, %dy) : ({x}, {dy}) -> {y}
    %wide = onnx.Cast(%g) {{to = 1 : i64}} : ({y}) -> {type_}
    %new = onnx.Add(%sum, %wide) : ({type_}, {type_}) -> {type_}
    {end}
  }}"""
        return simulated(text, *fusions).compute_s[0]

    returned = f"func.return %new : {type_}", type_
    reduced = (
        (
            f"%r = collective.all_reduce %new over [d] : {type_} -> {whole}\n"
            f"    func.return %r : {whole}"
        ),
        whole,
    )
    for fusion in ("accumulation", "buckets"):
        assert computing(*reduced, fusion) == computing(*returned, fusion)
        assert computing(*reduced, fusion) < computing(*reduced)


ROWS, PAIR = f"{MATRIX}bf16>", f'{MATRIX}!onnx.element<"float8e4m3fn">>'
COLUMN = f"tensor<{SIZE}x1xf32>"
CAST = f"({ROWS}, tensor<f32>) -> {PAIR}"
MADE = f"""
  func.func @main(%x: {ROWS}, %w: tensor<{SIZE}xbf16>, %s: tensor<f32>) -> ({PAIR}, {PAIR}) {{
    %n = onnx.Add(%x, %w) : ({ROWS}, tensor<{SIZE}xbf16>) -> {ROWS}
    %y = train.to_float8 %n, %s : {CAST}
    %t = onnx.Transpose(%n) {{perm = [1 : i64, 0 : i64]}} : ({ROWS}) -> {ROWS}
    %z = train.to_float8 %t, %s : {CAST}
    func.return %y, %z : {PAIR}, {PAIR}
  }}"""


def alone(text: str) -> float:
    """Returns the time of the op before the casts."""
    before, _ = text.replace(f"({PAIR}, {PAIR})", ROWS).split("    %y")
    return seconds(f"{before}    func.return %n : {ROWS}\n  }}", "views")


def test_one_kernel_casts_in_both_orders():
    """It reads two bytes of each element once, and writes one twice."""
    curve = load_profile("H100").curve("bf16", "elementwise")
    cast = curve.overhead + 4 * SIZE * SIZE / (3.35e12 * curve.bandwidth)
    assert seconds(MADE, "views", "casts") == pytest.approx(alone(MADE) + cast)
    assert seconds(MADE, "views", "casts") < seconds(MADE, "views")


@pytest.mark.parametrize("op", ["Mul", "norm"])
def test_gates_and_normalizations_write_8_bits_at_once(op: str):
    text = MADE.replace("onnx.Add", "onnx.Mul")
    if op == "norm":
        norm = "train.rms_norm %x, %w {axis = 1 : i64, epsilon = 1.0e-5 : f32}"
        text = text.replace("%n = onnx.Mul(%x, %w)", f"%n, %r = {norm}")
        one, both = f"xbf16>) -> {ROWS}", f"xbf16>) -> ({ROWS}, {COLUMN})"
        text = text.replace(one, both, 1)
    assert seconds(text, "views", "casts") == pytest.approx(alone(text))


def test_the_backward_casts_gradients_only():
    """
    An input of a product was kept in 8 bits. The forward casts a weight in both orders,
    so that the backward, which takes the transposed one, casts none.
    """
    line = (
        f"    %y = train.to_float8 %x, %s : {CAST}\n    func.return %y : {PAIR}\n  }}"
    )
    head = f"\n  func.func @main(%x: {ROWS} ROLE, %s: tensor<f32>) -> {PAIR} {{\n"
    kept = (head + line).replace("ROLE", "")
    weight = (head + line).replace("ROLE", '{dist.role = "parameter"}')
    gradient = kept.replace("float8e4m3fn", "float8e5m2")
    assert seconds(kept, "casts") == 0
    curve = load_profile("H100").curve("bf16", "elementwise")
    moved = 4 * SIZE * SIZE / (3.35e12 * curve.bandwidth)
    assert seconds(weight, "casts") == pytest.approx(curve.overhead + moved)
    perm = "{perm = [1 : i64, 0 : i64]}"
    turned = weight.replace("to_float8 %x", "to_float8 %t").replace(
        "    %y", f"    %t = onnx.Transpose(%x) {perm} : ({ROWS}) -> {ROWS}\n    %y"
    )
    assert seconds(turned, "casts", "views") == 0 < seconds(turned, "views")
    assert seconds(gradient, "casts") > seconds(gradient)  # both orders


GATE = f"""
  func.func @main(%g: {ROWS}, %u: {ROWS}, %dy: {ROWS}) -> ({ROWS}, {ROWS}, {ROWS}) {{
    %a = onnx.Swish(%g) : ({ROWS}) -> {ROWS}
    %y = onnx.Mul(%a, %u) : ({ROWS}, {ROWS}) -> {ROWS}
    %du = onnx.Mul(%dy, %a) : ({ROWS}, {ROWS}) -> {ROWS}
    %da = onnx.Mul(%dy, %u) : ({ROWS}, {ROWS}) -> {ROWS}
    %dg = train.swish_grad %da, %g {{alpha = 1.0 : f32}} : ({ROWS}, {ROWS}) -> {ROWS}
    func.return %y, %du, %dg : {ROWS}, {ROWS}, {ROWS}
  }}"""


def test_a_gate_is_one_kernel_forward_and_backward():
    """Three kernels of three tensors are counted, of five that the program has."""
    curve = load_profile("H100").curve("bf16", "elementwise")
    each = curve.overhead + 3 * 2 * SIZE * SIZE / (3.35e12 * curve.bandwidth)
    assert seconds(GATE, "gates") == pytest.approx(3 * each)


HALF = f"tensor<{SIZE}x{SIZE // 2}xbf16>"
ROTARY = f"""
  func.func @main(%x: {ROWS}, %cos: tensor<{SIZE}xbf16>, %sin: tensor<{SIZE}xbf16>) -> {ROWS} {{
    %n = onnx.Constant() {{value = dense<{SIZE // 2}> : tensor<2xi64>}} : () -> tensor<2xi64>
    %a, %b = onnx.Split(%x, %n) {{axis = 1 : i64}} : ({ROWS}, tensor<2xi64>) -> ({HALF}, {HALF})
    %m = onnx.Neg(%b) : ({HALF}) -> {HALF}
    %r = onnx.Concat(%m, %a) {{axis = 1 : i64}} : ({HALF}, {HALF}) -> {ROWS}
    %p = onnx.Mul(%x, %cos) : ({ROWS}, tensor<{SIZE}xbf16>) -> {ROWS}
    %q = onnx.Mul(%r, %sin) : ({ROWS}, tensor<{SIZE}xbf16>) -> {ROWS}
    %y = onnx.Add(%p, %q) : ({ROWS}, {ROWS}) -> {ROWS}
    func.return %y : {ROWS}
  }}"""
TURNED_BACK = f"""
  func.func @main(%x: {ROWS}, %cos: tensor<{SIZE}xbf16>, %sin: tensor<{SIZE}xbf16>) -> {ROWS} {{
    %n = onnx.Constant() {{value = dense<{SIZE // 2}> : tensor<2xi64>}} : () -> tensor<2xi64>
    %q = onnx.Mul(%x, %sin) : ({ROWS}, tensor<{SIZE}xbf16>) -> {ROWS}
    %p = onnx.Mul(%x, %cos) : ({ROWS}, tensor<{SIZE}xbf16>) -> {ROWS}
    %a, %b = onnx.Split(%q, %n) {{axis = 1 : i64}} : ({ROWS}, tensor<2xi64>) -> ({HALF}, {HALF})
    %m = onnx.Neg(%a) : ({HALF}) -> {HALF}
    %r = onnx.Concat(%b, %m) {{axis = 1 : i64}} : ({HALF}, {HALF}) -> {ROWS}
    %y = onnx.Add(%p, %r) : ({ROWS}, {ROWS}) -> {ROWS}
    func.return %y : {ROWS}
  }}"""


@pytest.mark.parametrize("text", [ROTARY, TURNED_BACK], ids=["forward", "backward"])
def test_rotary_positions_are_read_once_and_written_once(text: str):
    curve = load_profile("H100").curve("bf16", "elementwise")
    moved = 2 * 2 * SIZE * SIZE / (3.35e12 * curve.bandwidth)
    found = seconds(text, "views", "rotary")
    assert found == pytest.approx(curve.overhead + moved)
    assert found < seconds(text, "views") / 2


def test_a_sum_of_products_alone_is_no_rotary_position():
    other = ROTARY.replace("onnx.Neg", "onnx.Exp")
    assert seconds(other, "views", "rotary") == seconds(other, "views")
