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
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.onnx_op import OnnxOp
from distir.frontends.builders import build_gpt
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
@pytest.mark.parametrize("outlined", [False, True])
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
}  # fmt: skip
"""How scores come of a product, the attributes of attention then, and its operands."""


def written_out(form: str) -> ModuleOp:
    """Attention of parameters, with these ops between the product and the softmax."""
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
        %p = onnx.Softmax(%scores) {{axis = -1 : i64}} : ({SCORES}) -> {SCORES}
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


KEEP = np.arange(12).reshape(2, 1, 1, 6) % 5 > 0
"""The keys that a mask shows; the first query of the first sequence sees none if causal."""


def step(module: ModuleOp, loss: str = "cross_entropy", **options: Any) -> ModuleOp:
    """A distributed training step of a model."""
    module = module.clone()
    DifferentiatePass(loss=loss).apply(Context(), module)
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
