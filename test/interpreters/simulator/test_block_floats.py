"""Products in blocks, and the conversions before them: prices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cost_programs import parse

from distir.dialects.train_ops.block_floats import BLOCK_RECIPES, scale_shape
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.profiles.files import load_profile
from distir.interpreters.simulator.profiles.profile import Dispatch

SIZE = 8192
BF16 = f"tensor<{SIZE}x{SIZE}xbf16>"
NUMBER = "tensor<f32>"


def types(recipe: str, axis: int) -> tuple[str, str]:
    """The types of a matrix in blocks and of its scales."""
    form = BLOCK_RECIPES[recipe]
    rows, columns = scale_shape(form, (SIZE, SIZE), axis, False)
    return (
        f"tensor<{SIZE}x{SIZE}x{form.element}>",
        f"tensor<{rows}x{columns}x{form.scale}>",
    )


def seconds(text: str, *fusions: str, cluster: str = "dgx-b200") -> float:
    """The time of a program on devices whose software knows some fusions."""
    profile = load_profile({"dgx-b200": "B200", "dgx-h100": "H100"}[cluster])
    own = replace(profile, fusion=frozenset(fusions), dispatch=Dispatch())
    return simulate(parse(text), load_cluster(cluster), profiles=[own]).step_time_s


def product(recipe: str) -> str:
    """A product of two matrices in blocks."""
    (a, s), (b, t) = types(recipe, 1), types(recipe, 0)
    given, operands = [a, b, s, t], ["%a", "%b", "%s", "%t"]
    if BLOCK_RECIPES[recipe].has_tensor_scale:
        given, operands = [*given, NUMBER, NUMBER], [*operands, "%u", "%v"]
    arguments = ", ".join(f"{n}: {x}" for n, x in zip(operands, given, strict=True))
    return f"""
    func.func @main({arguments}) -> {BF16} {{
      %y = train.block_product {", ".join(operands)} {{recipe = "{recipe}"}} : ({", ".join(given)}) -> {BF16}
      func.return %y : {BF16}
    }}"""


PLAIN = f"""
func.func @main(%a: {BF16}, %b: {BF16}) -> {BF16} {{
  %y = onnx.MatMul(%a, %b) : ({BF16}, {BF16}) -> {BF16}
  func.return %y : {BF16}
}}"""


def test_a_device_has_a_rate_for_each_format() -> None:
    """
    By the profile, MXFP8 reaches 0.57 of twice the peak of bf16, which reaches 0.609 of its
    own; NVFP4 is 1.9 times as fast. A device without such cores is as fast as in f32.
    """
    plain, mx, nv = (seconds(t) for t in (PLAIN, product("mxfp8"), product("nvfp4")))
    assert plain / mx == pytest.approx(2 * 0.57 / 0.609, rel=0.02)
    assert mx / nv == pytest.approx(1.9, rel=0.02)
    slow = seconds(product("mxfp8"), cluster="dgx-h100")
    assert slow > 5 * seconds(PLAIN, cluster="dgx-h100")


def casts(recipe: str, source: str, role: str = "input") -> str:
    """Both conversions of a tensor: `source` computes it, as %n, from the argument %x."""
    (a, s), (b, t) = types(recipe, 1), types(recipe, 0)
    scale, more, of = "", "", BF16
    if BLOCK_RECIPES[recipe].has_tensor_scale:
        scale = (
            f'%u = train.float8_scale %n {{format = "{recipe}"}} : ({BF16}) -> {NUMBER}'
        )
        more, of = ", %u", f"{BF16}, {NUMBER}"
    return f"""
    func.func @main(%x: {BF16} {{dist.role = "{role}", dist.name = "x"}}, %c: tensor<{SIZE}xbf16>) -> ({a}, {b}) {{
      {source}
      {scale}
      %a, %s = train.quantize_blocks %n{more} {{recipe = "{recipe}", axis = 1 : i64}} : ({of}) -> ({a}, {s})
      %b, %t = train.quantize_blocks %n{more} {{recipe = "{recipe}", axis = 0 : i64}} : ({of}) -> ({b}, {t})
      func.return %a, %b : {a}, {b}
    }}"""


NORM = f"%n, %m = train.rms_norm %x, %c {{axis = -1 : i64, epsilon = 1.0e-6 : f32}} : ({BF16}, tensor<{SIZE}xbf16>) -> ({BF16}, tensor<{SIZE}x1xf32>)"
NORMED = f"""
func.func @main(%x: {BF16}, %c: tensor<{SIZE}xbf16>) -> {BF16} {{
  {NORM}
  func.return %n : {BF16}
}}"""


def kernel(read: float, written: float) -> float:
    """The time of a kernel that moves some bytes for each element."""
    curve = load_profile("B200").curve("bf16", "elementwise")
    moved = SIZE * SIZE * (read + written)
    return curve.overhead + moved / (8e12 * curve.bandwidth)


@pytest.mark.parametrize(
    ("recipe", "each"), [("mxfp8", 1 + 1 / 32), ("nvfp4", 1 / 2 + 1 / 16)]
)
def test_conversions(recipe: str, each: float) -> None:
    """
    One kernel writes blocks in both directions. A norm does so in place of its result, but
    where a tensor has a scale: it is known when the norm is done.
    """
    has_scale = recipe == "nvfp4"
    magnitude = kernel(2, 0) if has_scale else 0.0
    plain = casts(recipe, "").replace("%n", "%x")
    own = kernel(2, each)
    assert seconds(plain) == pytest.approx(magnitude + 2 * own, rel=1e-3)
    both = kernel(2, 2 * each)
    assert seconds(plain, "casts") == pytest.approx(magnitude + both, rel=1e-3)
    after = seconds(casts(recipe, NORM), "casts") - seconds(NORMED, "casts")
    assert after == pytest.approx(both if has_scale else 0.0, abs=1e-9)
