"""Attention of exported models becomes one op, which computes and trains the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gradients.harness import normal
from support import models
from support.lowering_cases import run_here
from support.pipelines import arguments_of, assert_equal_results
from support.programs import parse
from support.thoroughness import sampled
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.onnx_ops.op import OnnxOp
from distir.frontends.models.basic import build_gpt
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass
from distir.program import argument_names, entry_function


def fused(module: ModuleOp) -> ModuleOp:
    """A verified copy after the pass."""
    copy = module.clone()
    RaisePatternsPass().apply(Context(), copy)
    copy.verify()
    return copy


def ops(module: ModuleOp) -> Counter[str]:
    """How many ops of each kind there are."""
    return Counter(op.name for op in module.walk())


@pytest.mark.parametrize("exporter", models.EXPORTERS)
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("outlined", sampled([True, False], 2))
def test_models(name: str, exporter: models.Exporter, outlined: bool) -> None:
    model = models.model(name)
    imported = models.imported(name, exporter)
    plain = imported.module.clone()
    if outlined:
        OutlineRepeatsPass().apply(Context(), plain)
    module = fused(plain)
    found = ops(module)
    layers = ops(plain)["onnx.Softmax"]
    assert found["onnx.Attention"] == layers and found["onnx.Softmax"] == 0
    values = {**imported.weights, **model.numpy_inputs}
    names = argument_names(entry_function(module))
    results = run_program(module, [np.asarray(values[n]) for n in names])
    for expected, result in zip(model.numpy_outputs.values(), results, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-5)


SCORES = "tensor<2x4x6x6xf32>"

FORMS: dict[str, tuple[str, dict[str, object], int]] = {
    "soft cap": (
        f"""
        %cap = onnx.Constant() {{value = dense<2.0> : tensor<f32>}} : () -> tensor<f32>
        %c0 = onnx.Div(%raw, %cap) : ({SCORES}, tensor<f32>) -> {SCORES}
        %c1 = onnx.Tanh(%c0) : ({SCORES}) -> {SCORES}
        %c2 = onnx.Mul(%c1, %cap) : ({SCORES}, tensor<f32>) -> {SCORES}
        %scores = onnx.Add(%c2, %causal) : ({SCORES}, tensor<6x6xf32>) -> {SCORES}
        """,
        {"softcap": 2.0, "is_causal": 1},
        3,
    ),
    "distances": (
        f"""
        %slopes = onnx.Constant() {{value = dense<[[[0.5]], [[0.25]], [[0.125]], [[0.0625]]]> : tensor<4x1x1xf32>}} : () -> tensor<4x1x1xf32>
        %places = onnx.Constant() {{value = dense<[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]> : tensor<1x6xf32>}} : () -> tensor<1x6xf32>
        %alibi = onnx.Mul(%slopes, %places) : (tensor<4x1x1xf32>, tensor<1x6xf32>) -> tensor<4x1x6xf32>
        %c0 = onnx.Add(%raw, %alibi) : ({SCORES}, tensor<4x1x6xf32>) -> {SCORES}
        %scores = onnx.Where(%seen, %c0, %low) : (tensor<6x6xi1>, {SCORES}, tensor<f32>) -> {SCORES}
        """,
        {"is_causal": 1},
        4,
    ),
    "two masks": (
        f"""
        %zero = onnx.Constant() {{value = dense<0.0> : tensor<f32>}} : () -> tensor<f32>
        %given = onnx.Where(%keep, %zero, %low) : (tensor<2x1x1x6xi1>, tensor<f32>, tensor<f32>) -> tensor<2x1x1x6xf32>
        %some = onnx.Constant() {{value = dense<0.5> : tensor<6x6xf32>}} : () -> tensor<6x6xf32>
        %c0 = onnx.Add(%given, %raw) : (tensor<2x1x1x6xf32>, {SCORES}) -> {SCORES}
        %scores = onnx.Add(%some, %c0) : (tensor<6x6xf32>, {SCORES}) -> {SCORES}
        """,
        {"is_causal": 0},
        4,
    ),
    "filled": (
        f"""
        %not = onnx.Not(%keep) : (tensor<2x1x1x6xi1>) -> tensor<2x1x1x6xi1>
        %scores = onnx.Where(%not, %low, %raw) : (tensor<2x1x1x6xi1>, tensor<f32>, {SCORES}) -> {SCORES}
        """,
        {"is_causal": 0},
        4,
    ),
    "causal for a batch": (
        f"""
        %zero = onnx.Constant() {{value = dense<0.0> : tensor<f32>}} : () -> tensor<f32>
        %sizes = onnx.Constant() {{value = dense<[2, 1, 6, 6]> : tensor<4xi64>}} : () -> tensor<4xi64>
        %wide = onnx.Expand(%seen, %sizes) : (tensor<6x6xi1>, tensor<4xi64>) -> tensor<2x1x6x6xi1>
        %mask = onnx.Where(%wide, %zero, %low) : (tensor<2x1x6x6xi1>, tensor<f32>, tensor<f32>) -> tensor<2x1x6x6xf32>
        %scores = onnx.Add(%raw, %mask) : ({SCORES}, tensor<2x1x6x6xf32>) -> {SCORES}
        """,
        {"is_causal": 1},
        3,
    ),
    "sliding window": (
        f"""
        %window = onnx.Constant() {{value = dense<[[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]]> : tensor<6x6xi1>}} : () -> tensor<6x6xi1>
        %hidden = onnx.Constant() {{value = dense<"0x000080FF"> : tensor<f32>}} : () -> tensor<f32>
        %scores = onnx.Where(%window, %raw, %hidden) : (tensor<6x6xi1>, {SCORES}, tensor<f32>) -> {SCORES}
        """,
        {"is_causal": 0},
        4,
    ),
    "distances scaled with the scores": (
        f"""
        %factor = onnx.Constant() {{value = dense<0.25> : tensor<f32>}} : () -> tensor<f32>
        %places = onnx.Constant() {{value = dense<[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]> : tensor<1x6xf32>}} : () -> tensor<1x6xf32>
        %c0 = onnx.Add(%raw, %places) : ({SCORES}, tensor<1x6xf32>) -> {SCORES}
        %c1 = onnx.Mul(%c0, %factor) : ({SCORES}, tensor<f32>) -> {SCORES}
        %scores = onnx.Add(%c1, %causal) : ({SCORES}, tensor<6x6xf32>) -> {SCORES}
        """,
        {"is_causal": 1, "scale": 0.25},
        4,
    ),
    "soft cap, window and distances": (
        f"""
        %cap = onnx.Constant() {{value = dense<2.0> : tensor<f32>}} : () -> tensor<f32>
        %places = onnx.Constant() {{value = dense<[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]> : tensor<1x6xf32>}} : () -> tensor<1x6xf32>
        %near = onnx.Constant() {{value = dense<[[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]> : tensor<6x6xi1>}} : () -> tensor<6x6xi1>
        %c0 = onnx.Div(%raw, %cap) : ({SCORES}, tensor<f32>) -> {SCORES}
        %c1 = onnx.Tanh(%c0) : ({SCORES}) -> {SCORES}
        %c2 = onnx.Mul(%c1, %cap) : ({SCORES}, tensor<f32>) -> {SCORES}
        %c3 = onnx.Add(%c2, %places) : ({SCORES}, tensor<1x6xf32>) -> {SCORES}
        %scores = onnx.Where(%near, %c3, %low) : (tensor<6x6xi1>, {SCORES}, tensor<f32>) -> {SCORES}
        """,
        {"softcap": 2.0, "is_causal": 0},
        4,
    ),
}  # fmt: skip
"""How scores come of a product, the attributes of attention then, and its operands."""


def written_out(form: str, dropout: bool = False) -> ModuleOp:
    """
    Attention of parameters, with these ops between the product and the softmax, and perhaps
    dropout behind it.
    """
    drop = "%p = onnx.Dropout(%w, %ratio, %on)" if dropout else "%p = onnx.Identity(%w)"
    more = ", tensor<f32>, tensor<i1>" if dropout else ""
    heads, turned = "tensor<2x4x6x8xf32>", "tensor<2x4x8x6xf32>"
    given = ", ".join(
        f'%{n}: {heads} {{dist.role = "parameter", dist.name = "{n}"}}' for n in "qkv"
    )
    rows = [[int(key <= query) for key in range(6)] for query in range(6)]
    return parse(f"""
        func.func @main({given}, %keep: tensor<2x1x1x6xi1> {{dist.role = "input", dist.name = "keep"}}) -> {heads} {{
        %seen = onnx.Constant() {{value = dense<{rows}> : tensor<6x6xi1>}} : () -> tensor<6x6xi1>
        %none = onnx.Constant() {{value = dense<0.0> : tensor<f32>}} : () -> tensor<f32>
        %low = onnx.Constant() {{value = dense<-3.40282347E+38> : tensor<f32>}} : () -> tensor<f32>
        %causal = onnx.Where(%seen, %none, %low) : (tensor<6x6xi1>, tensor<f32>, tensor<f32>) -> tensor<6x6xf32>
        %t = onnx.Transpose(%k) {{perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]}} : ({heads}) -> {turned}
        %raw = onnx.MatMul(%q, %t) : ({heads}, {turned}) -> {SCORES}
        {FORMS[form][0]}
        %ratio = onnx.Constant() {{value = dense<0.25> : tensor<f32>}} : () -> tensor<f32>
        %on = onnx.Constant() {{value = dense<true> : tensor<i1>}} : () -> tensor<i1>
        %w = onnx.Softmax(%scores) {{axis = -1 : i64}} : ({SCORES}) -> {SCORES}
        {drop} : ({SCORES}{more}) -> {SCORES}
        %y = onnx.MatMul(%p, %v) : ({SCORES}, {heads}) -> {heads}
        func.return %y : {heads}
        }}""")  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_scores(form: str) -> None:
    """Each becomes one op, and computes and trains the same, distributed or in PyTorch."""
    plain = written_out(form)
    module = fused(plain)
    _, attributes, operands = FORMS[form]
    (attention,) = (op for op in module.walk() if op.name == "onnx.Attention")
    assert isinstance(attention, OnnxOp) and len(attention.operands) == operands
    assert {name: attention.attribute(name) for name in attributes} == attributes
    assert not ops(module)["onnx.Softmax"]
    arguments = [*(normal(2, 4, 6, 8, seed=i) for i in range(3)), KEEP]
    arguments = [a if a is KEEP else a.astype(np.float32) for a in arguments]
    (expected,) = run_program(plain, arguments)
    for found in (*run_program(module, arguments), *run_here(module, arguments)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    trained = [step(plain, loss="mse"), step(module, loss="mse", d=2, t=2)]
    arguments = arguments_of(trained[0])
    results = [run_program(program, arguments) for program in trained]
    assert_equal_results(trained[0], *results, 1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_forms_with_dropout(form: str) -> None:
    """Each becomes one op in training, which drops the same probabilities."""
    plain = step(written_out(form, dropout=True), loss="mse", fused=False)
    module = step(fused(written_out(form, dropout=True)), loss="mse")
    split = distributed(module, d=2, t=2)
    assert ops(module)["train.dropped_attention"] == 1 and ops(plain)["train.dropout"]
    assert not ops(module)["onnx.Softmax"] and not ops(module)["train.dropout"]
    arguments = arguments_of(plain)
    expected = run_program(plain, arguments)
    for found in (run_program(split, arguments), run_here(module, arguments)):
        assert_equal_results(plain, expected, found, 1e-4)


@pytest.mark.parametrize("lowest", ["0.0", "-1.0", "1.0e9"])
def test_scores_filled_with_other_numbers(lowest: str) -> None:
    """Added to the scores they would not have the effect that they have in their place."""
    plain = written_out("distances")
    text = str(plain).replace("-3.40282347e+38", lowest)
    assert text != str(plain)
    assert ops(fused(parse(text)))["onnx.Softmax"] == 1


MERGED = """
    func.func @main(%q: tensor<2x4x6x8xf32> {dist.role = "parameter", dist.name = "q"}, %k: tensor<2x4x6x8xf32> {dist.role = "parameter", dist.name = "k"}, %v: tensor<2x4x6x8xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<2x4x6x8xf32> {
    %flat = onnx.Constant() {value = dense<[8, 6, 8]> : tensor<3xi64>} : () -> tensor<3xi64>
    %wide = onnx.Constant() {value = dense<[2, 4, 6, 6]> : tensor<4xi64>} : () -> tensor<4xi64>
    %square = onnx.Constant() {value = dense<[8, 6, 6]> : tensor<3xi64>} : () -> tensor<3xi64>
    %end = onnx.Constant() {value = dense<[2, 4, 6, 8]> : tensor<4xi64>} : () -> tensor<4xi64>
    %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
    %alibi = onnx.Constant() {value = dense<0.125> : tensor<8x1x6xf32>} : () -> tensor<8x1x6xf32>
    %off = onnx.Constant() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
    %q3 = onnx.Reshape(%q, %flat) : (tensor<2x4x6x8xf32>, tensor<3xi64>) -> tensor<8x6x8xf32>
    %k3 = onnx.Reshape(%k, %flat) : (tensor<2x4x6x8xf32>, tensor<3xi64>) -> tensor<8x6x8xf32>
    %v3 = onnx.Reshape(%v, %flat) : (tensor<2x4x6x8xf32>, tensor<3xi64>) -> tensor<8x6x8xf32>
    %t = onnx.Transpose(%k3) {perm = [0 : i64, 2 : i64, 1 : i64]} : (tensor<8x6x8xf32>) -> tensor<8x8x6xf32>
    %raw = onnx.MatMul(%q3, %t) : (tensor<8x6x8xf32>, tensor<8x8x6xf32>) -> tensor<8x6x6xf32>
    %scaled = onnx.Mul(%raw, %half) : (tensor<8x6x6xf32>, tensor<f32>) -> tensor<8x6x6xf32>
    %sum = onnx.Add(%scaled, %alibi) : (tensor<8x6x6xf32>, tensor<8x1x6xf32>) -> tensor<8x6x6xf32>
    %scores = onnx.Reshape(%sum, %wide) : (tensor<8x6x6xf32>, tensor<4xi64>) -> tensor<2x4x6x6xf32>
    %p = onnx.Softmax(%scores) {axis = -1 : i64} : (tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
    %c = onnx.Cast(%p) {to = 1 : i64} : (tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
    %d = onnx.Dropout(%c, %half, %off) : (tensor<2x4x6x6xf32>, tensor<f32>, tensor<i1>) -> tensor<2x4x6x6xf32>
    %p3 = onnx.Reshape(%d, %square) : (tensor<2x4x6x6xf32>, tensor<3xi64>) -> tensor<8x6x6xf32>
    %y3 = onnx.MatMul(%p3, %v3) : (tensor<8x6x6xf32>, tensor<8x6x8xf32>) -> tensor<8x6x8xf32>
    %y = onnx.Reshape(%y3, %end) : (tensor<8x6x8xf32>, tensor<4xi64>) -> tensor<2x4x6x8xf32>
    func.return %y : tensor<2x4x6x8xf32>
    }"""  # fmt: skip
"""
Attention as BLOOM writes it: batch and heads are merged for the products; with a cast to the
same type, and a dropout in evaluation.
"""


def test_merged_heads() -> None:
    plain = parse(MERGED)
    module = fused(plain)
    found = ops(module)
    assert found["onnx.Attention"] == 1
    assert not {"onnx.Softmax", "onnx.Cast", "onnx.Dropout"} & found.keys()
    trained = [step(plain, loss="mse"), step(module, loss="mse", d=2, t=2)]
    arguments = arguments_of(trained[0])
    results = [run_program(program, arguments) for program in trained]
    assert_equal_results(trained[0], *results, 1e-4)


def test_softmax_in_a_wider_type() -> None:
    """Scores that are cast to f32 for the softmax, as mixed precision does it."""
    text = str(written_out("distances")).replace("xf32", "xf16")
    narrow, wide = (SCORES.replace("f32", kind) for kind in ("f16", "f32"))
    before = f"%w = onnx.Softmax(%scores) {{axis = -1 : i64}} : ({narrow}) -> {narrow}"
    assert before in text
    text = text.replace(
        before,
        f"""%up = onnx.Cast(%scores) {{to = 1 : i64}} : ({narrow}) -> {wide}
        %w32 = onnx.Softmax(%up) {{axis = -1 : i64}} : ({wide}) -> {wide}
        %w = onnx.Cast(%w32) {{to = 10 : i64}} : ({wide}) -> {narrow}""",
    )
    text = text.replace("tensor<f32>", "tensor<f16>").replace(
        "-3.40282347e+38", "-65504.0"
    )
    plain = parse(text)
    module = fused(plain)
    assert ops(module)["onnx.Attention"] == 1 and not ops(module)["onnx.Softmax"]
    given = [normal(2, 4, 6, 8, seed=i).astype(np.float16) for i in range(3)]
    (expected,), (found,) = (run_program(m, [*given, KEEP]) for m in (plain, module))
    np.testing.assert_allclose(found, expected, atol=5e-3)


KEEP = np.arange(12).reshape(2, 1, 1, 6) % 5 > 0
"""The keys that a mask shows; the first query of the first sequence sees none if causal."""


def step(
    module: ModuleOp, loss: str = "cross_entropy", fused: bool = True, **options: Any
) -> ModuleOp:
    """A training step of a model, distributed if there are options."""
    module = module.clone()
    DifferentiatePass(loss=loss, fused_attention=fused).apply(Context(), module)
    if options:
        DistributePass(**options).apply(Context(), module)
    module.verify()
    return module


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d": 2, "t": 2},
        {"t": 4, "sequence_parallel": True},
        {"p": 2, "k": 2, "checkpoint": "full"},
    ],
    ids=str,
)
def test_training(options: dict[str, Any]) -> None:
    """Fused attention is split by heads, and trains as what is written out does."""
    model = build_gpt(*(2, 16, 4, 32, 4, 8), fused_attention=False)
    plain, module = step(model), step(fused(model), **options)
    assert ops(module)["train.attention_grad"] > 0
    arguments = arguments_of(plain)
    expected = run_program(plain, arguments)
    actual = run_program(module, arguments)
    assert_equal_results(plain, expected, actual, 1e-4)
