"""
Masks that constants make are recognised as causal in one piece and in blocks of rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from gradients.harness import normal
from support.programs import parse
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.onnx_ops.op import OnnxOp
from distir.interpreters.reference import run_program
from distir.passes.raise_patterns import RaisePatternsPass

SIZE = 6
SCORES, SEEN = "tensor<2x4x6x6xf32>", "tensor<6x6xi1>"
ROW, COLUMN = "tensor<1x6xi64>", "tensor<6x1xi64>"
BATCH = "tensor<2x1x6x6xi1>"

CAUSAL = {
    "compared": f"%seen = onnx.LessOrEqual(%key, %query) : ({ROW}, {COLUMN}) -> {SEEN}",
    "hidden": f"""
        %after = onnx.Greater(%key, %query) : ({ROW}, {COLUMN}) -> {SEEN}
        %seen = onnx.Not(%after) : ({SEEN}) -> {SEEN}
        """,
    "triangle": f"""
        %all = onnx.Expand(%true, %square) : (tensor<i1>, tensor<2xi64>) -> {SEEN}
        %seen = onnx.Trilu(%all) {{upper = 0 : i64}} : ({SEEN}) -> {SEEN}
        """,
    "triangle above": f"""
        %all = onnx.Expand(%true, %square) : (tensor<i1>, tensor<2xi64>) -> {SEEN}
        %after = onnx.Trilu(%all, %one) {{upper = 1 : i64}} : ({SEEN}, tensor<i64>) -> {SEEN}
        %seen = onnx.Not(%after) : ({SEEN}) -> {SEEN}
        """,
    # Tokens of a batch that count from 0 in one text each, as transformers compares them.
    "texts of a batch": f"""
        %rows = onnx.Expand(%key, %texts) : ({ROW}, tensor<2xi64>) -> tensor<2x6xi64>
        %axis = onnx.Constant() {{value = dense<1> : tensor<i64>}} : () -> tensor<i64>
        %zeros = onnx.Sub(%rows, %rows) : (tensor<2x6xi64>, tensor<2x6xi64>) -> tensor<2x6xi64>
        %text = onnx.CumSum(%zeros, %axis) : (tensor<2x6xi64>, tensor<i64>) -> tensor<2x6xi64>
        %textq = onnx.Reshape(%text, %qs) : (tensor<2x6xi64>, tensor<4xi64>) -> tensor<2x1x6x1xi64>
        %textk = onnx.Reshape(%text, %ks) : (tensor<2x6xi64>, tensor<4xi64>) -> tensor<2x1x1x6xi64>
        %same = onnx.Equal(%textq, %textk) : (tensor<2x1x6x1xi64>, tensor<2x1x1x6xi64>) -> {BATCH}
        %before = onnx.LessOrEqual(%key, %query) : ({ROW}, {COLUMN}) -> {SEEN}
        %first = onnx.Constant() {{value = dense<0> : tensor<1xi64>}} : () -> tensor<1xi64>
        %wide = onnx.Unsqueeze(%before, %first) : ({SEEN}, tensor<1xi64>) -> tensor<1x6x6xi1>
        %seen = onnx.And(%wide, %same) : (tensor<1x6x6xi1>, {BATCH}) -> {BATCH}
        """,
}  # fmt: skip
"""Ops that make causal masks."""

OTHERS = {
    "not itself": f"%seen = onnx.Less(%key, %query) : ({ROW}, {COLUMN}) -> {SEEN}",
    "one after": f"%seen = onnx.LessOrEqual(%key, %more) : ({ROW}, {COLUMN}) -> {SEEN}",
    "one row": f"%seen = onnx.LessOrEqual(%key, %zero) : ({ROW}, tensor<i64>) -> {ROW.replace('i64', 'i1')}",
    # Only the last query misses a key, the first.
    "all but one": f"""
        %far = onnx.Sub(%query, %key) : ({COLUMN}, {ROW}) -> tensor<6x6xi64>
        %near = onnx.Less(%far, %five) : (tensor<6x6xi64>, tensor<i64>) -> {SEEN}
        %before = onnx.LessOrEqual(%key, %query) : ({ROW}, {COLUMN}) -> {SEEN}
        %seen = onnx.And(%near, %before) : ({SEEN}, {SEEN}) -> {SEEN}
        """,
    "columns": f"%seen = onnx.LessOrEqual(%query, %key) : ({COLUMN}, {ROW}) -> {SEEN}",
}  # fmt: skip
"""Ops that make other masks."""


def attention(mask: str) -> ModuleOp:
    """Attention whose scores are filled where the mask of these ops is not set."""
    heads, turned = "tensor<2x4x6x8xf32>", "tensor<2x4x8x6xf32>"
    given = ", ".join(
        f'%{n}: {heads} {{dist.role = "input", dist.name = "{n}"}}' for n in "qkv"
    )
    seen = mask.rsplit("-> ", 1)[1].strip()
    columns = [[i] for i in range(SIZE)]
    constants = {
        "key": ([list(range(SIZE))], ROW),
        "query": (columns, COLUMN),
        "more": ([[i + 1] for i in range(SIZE)], COLUMN),
        "zero": (0, "tensor<i64>"),
        "one": (1, "tensor<i64>"),
        "five": (5, "tensor<i64>"),
        "true": ("true", "tensor<i1>"),
        "square": ([SIZE, SIZE], "tensor<2xi64>"),
        "texts": ([2, SIZE], "tensor<2xi64>"),
        "qs": ([2, 1, SIZE, 1], "tensor<4xi64>"),
        "ks": ([2, 1, 1, SIZE], "tensor<4xi64>"),
        "low": ("-3.40282347E+38", "tensor<f32>"),
    }
    lines = "\n".join(
        f"%{name} = onnx.Constant() {{value = dense<{value}> : {type_}}} : () -> {type_}"
        for name, (value, type_) in constants.items()
    )
    return parse(f"""
        func.func @main({given}) -> {heads} {{
        {lines}
        {mask}
        %t = onnx.Transpose(%k) {{perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]}} : ({heads}) -> {turned}
        %raw = onnx.MatMul(%q, %t) : ({heads}, {turned}) -> {SCORES}
        %scores = onnx.Where(%seen, %raw, %low) : ({seen}, {SCORES}, tensor<f32>) -> {SCORES}
        %w = onnx.Softmax(%scores) {{axis = -1 : i64}} : ({SCORES}) -> {SCORES}
        %y = onnx.MatMul(%w, %v) : ({SCORES}, {heads}) -> {heads}
        func.return %y : {heads}
        }}""")  # fmt: skip


def raised(module: ModuleOp) -> tuple[OnnxOp, ModuleOp]:
    """The attention that the pass finds, and the program that it makes."""
    found = module.clone()
    RaisePatternsPass().apply(Context(), found)
    found.verify()
    (op,) = (op for op in found.walk() if op.name == "onnx.Attention")
    assert isinstance(op, OnnxOp)
    return op, found


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("form", [*CAUSAL, *OTHERS])
def test_masks(form: str, in_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A mask is causal or not, whether it is computed whole or, as masks that are too large, a
    row or two at a time; what attention computes stays the same.
    """
    if in_blocks:
        # Less than a mask of 36 elements, even if a batch shares it; two rows fit.
        known = "distir.transforms.patterns.known_arrays"
        monkeypatch.setattr(f"{known}._MOST_ELEMENTS", 24)
        monkeypatch.setattr(f"{known}._BLOCK_ELEMENTS", 12)
    plain = attention({**CAUSAL, **OTHERS}[form])
    op, module = raised(plain)
    assert bool(op.attribute("is_causal")) == (form in CAUSAL)
    assert len(op.operands) == (3 if form in CAUSAL else 4)
    values = [normal(2, 4, 6, 8, seed=i).astype(np.float32) for i in range(3)]
    (expected,), (found,) = run_program(plain, values), run_program(module, values)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_masks_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask is not looked at if it would take too long, and then is not causal."""
    known = "distir.transforms.patterns.known_arrays"
    monkeypatch.setattr(f"{known}._MOST_ELEMENTS", 24)
    monkeypatch.setattr(f"{known}._MOST_ELEMENTS_IN_BLOCKS", 35)
    op, _ = raised(attention(CAUSAL["compared"]))
    assert not op.attribute("is_causal") and len(op.operands) == 4
