"""Products that libraries compute as one, and weights that are cast once a step: prices."""

from __future__ import annotations

import pytest
from interpreters.simulator.test_fused_training import seconds
from support.cost_programs import parse

from distir.interpreters.simulator.engine.distinct_arguments import DistinctArguments
from distir.interpreters.simulator.profiles.files import load_profile
from distir.interpreters.simulator.work import Product
from distir.program import functions

M, K, WIDE, NARROW = 2048, 4096, 4096, 512
X, W, V = (f"tensor<{a}x{b}xbf16>" for a, b in ((M, K), (K, WIDE), (K, NARROW)))
Y, Z = f"tensor<{M}x{WIDE}xbf16>", f"tensor<{M}x{NARROW}xbf16>"
QUERIES = f"""
  func.func @main(%x: {X}, %w: {W}, %v: {V}) -> ({Y}, {Z}) {{
    %y = onnx.MatMul(%x, %w) : ({X}, {W}) -> {Y}
    %z = onnx.MatMul(%x, %v) : ({X}, {V}) -> {Z}
    func.return %y, %z : {Y}, {Z}
  }}"""
TURNED, THIN = f"tensor<{WIDE}x{K}xbf16>", f"tensor<{NARROW}x{K}xbf16>"
INPUTS = f"""
  func.func @main(%dy: {Y}, %dz: {Z}, %w: {TURNED}, %v: {THIN}) -> {X} {{
    %a = onnx.MatMul(%dy, %w) : ({Y}, {TURNED}) -> {X}
    %b = onnx.MatMul(%dz, %v) : ({Z}, {THIN}) -> {X}
    %dx = onnx.Add(%a, %b) : ({X}, {X}) -> {X}
    func.return %dx : {X}
  }}"""
HALF, PIECE = f"tensor<{M // 2}x{K}xbf16>", f"tensor<{M // 2}x{WIDE}xbf16>"
PIECES = f"""
  func.func @main(%x: {HALF}, %u: {HALF}, %w: {W}, %bias: tensor<{WIDE}xbf16>) -> {Y} {{
    %a = onnx.MatMul(%x, %w) : ({HALF}, {W}) -> {PIECE}
    %b = onnx.MatMul(%u, %w) : ({HALF}, {W}) -> {PIECE}
    %y = onnx.Concat(%a, %b) {{axis = 0 : i64}} : ({PIECE}, {PIECE}) -> {Y}
    %z = onnx.Add(%y, %bias) : ({Y}, tensor<{WIDE}xbf16>) -> {Y}
    func.return %z : {Y}
  }}"""


def one(m: int, k: int, n: int) -> float:
    """Returns the seconds of a product of an m x k matrix and a k x n matrix."""
    profile = load_profile("H100")
    curve = profile.curve("bf16", "contraction")
    moved = 2 * (m * k + k * n + m * n)
    product = Product(1, m, n, k, (k, n, n))
    return curve.seconds(2 * m * k * n, product, moved, 989.4e12, 3.35e12)


def test_products_of_one_input_are_one_product():
    joined = one(M, K, WIDE + NARROW)
    assert seconds(QUERIES, "products") == pytest.approx(joined, rel=1e-3)
    assert seconds(QUERIES) == pytest.approx(one(M, K, WIDE) + one(M, K, NARROW), 1e-3)
    assert seconds(QUERIES, "products") != seconds(QUERIES)


@pytest.mark.parametrize(
    "changed",
    [
        QUERIES.replace("%v: ", f"%u: {X}, %v: ").replace("%x, %v", "%u, %v"),
        QUERIES.replace("onnx.MatMul(%x, %v)", "onnx.Gemm(%x, %v)"),
    ],
    ids=["other-input", "other-op"],
)
def test_other_products_stay_products_by_themselves(changed: str):
    assert changed != QUERIES
    assert seconds(changed, "products") == seconds(changed)


def test_products_that_are_added_up_are_one_product():
    """Its sums are as long as those of both, and no kernel adds."""
    assert seconds(INPUTS, "products") == pytest.approx(
        one(M, WIDE + NARROW, K), rel=1e-3
    )
    other = INPUTS.replace("onnx.Add(%a, %b)", "onnx.Add(%a, %a)")
    assert seconds(other, "products") == seconds(other)  # which adds one to itself


def test_pieces_of_a_product_are_written_to_their_places():
    alone = 2 * one(M // 2, K, WIDE)
    assert seconds(PIECES, "products") == pytest.approx(alone, rel=1e-3)
    assert seconds(PIECES) > 1.1 * alone


CALLS = 4
NARROWED = f'tensor<{K}x{WIDE}x!onnx.element<"float8e4m3fn">>'
STEP = f"""
  func.func private @layer(%w: {W} {{dist.role = "parameter"}}, %s: tensor<f32>) -> {NARROWED} {{
    %y = train.to_float8 %w, %s : ({W}, tensor<f32>) -> {NARROWED}
    func.return %y : {NARROWED}
  }}
  func.func @main(%w: {W}, %v: {W}, %s: tensor<f32>) -> {NARROWED} {{
    %0 = func.call @layer(%w, %s) : ({W}, tensor<f32>) -> {NARROWED}
    %1 = func.call @layer(%v, %s) : ({W}, tensor<f32>) -> {NARROWED}
    %2 = func.call @layer(%w, %s) : ({W}, tensor<f32>) -> {NARROWED}
    %3 = func.call @layer(%v, %s) : ({W}, tensor<f32>) -> {NARROWED}
    func.return %3 : {NARROWED}
  }}"""


def test_each_weight_is_cast_once_a_step():
    """Four calls with two weights: two casts, which read two bytes and write two."""
    curve = load_profile("H100").curve("bf16", "elementwise")
    cast = curve.overhead + 4 * K * WIDE / (3.35e12 * curve.bandwidth)
    assert seconds(STEP, "casts") == pytest.approx(2 * cast)
    other = STEP.replace('{dist.role = "parameter"}', "")
    assert seconds(other, "casts") == 0  # inputs were kept in 8 bits


def test_values_that_are_computed_anew_are_different_ones():
    """A gathered weight is a new value in each call of the function that gathers it."""
    text = f"""
  func.func private @inner(%w: {W}, %u: {W}) -> {W} {{
    func.return %w : {W}
  }}
  func.func private @outer(%w: {W}) -> {W} {{
    %g = onnx.Neg(%w) : ({W}) -> {W}
    %0 = func.call @inner(%g, %w) : ({W}, {W}) -> {W}
    %1 = func.call @inner(%g, %w) : ({W}, {W}) -> {W}
    func.return %1 : {W}
  }}
  func.func @main(%w: {W}) -> {W} {{
    %0 = func.call @outer(%w) : ({W}) -> {W}
    %1 = func.call @outer(%w) : ({W}) -> {W}
    %2 = func.call @outer(%0) : ({W}) -> {W}
    func.return %1 : {W}
  }}"""
    known = functions(parse(text))
    distinct = DistinctArguments(known)
    gathered, given = known["inner"].body.block.args
    assert distinct.share(gathered) == 3 / 6
    assert distinct.share(given) == 2 / 6
    assert distinct.share(known["main"].body.block.args[0]) == 1
