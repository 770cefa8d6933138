"""
Pipelines of programs whose functions have results that do not depend on the batch, or
arguments that nothing uses: they compute what the sequential programs do.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import arguments_of, distributed
from support.programs import parse
from support.random_programs import assert_same_results
from support.thoroughness import chosen, each_once, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.differentiate import DifferentiatePass

RESULT_WITHOUT_BATCH = """
func.func @f(%x: !b, %w: !w) -> (!b, !w) {
  %y = onnx.MatMul(%x, %w) : (!b, !w) -> !b
  %r = onnx.Tanh(%w) : (!w) -> !w
  func.return %y, %r : !b, !w
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> !b {
  %h, %r = func.call @f(%x, %v) : (!b, !w) -> (!b, !w)
  %s = onnx.Sigmoid(%r) : (!w) -> !w
  %y = onnx.MatMul(%h, %s) : (!b, !w) -> !b
  %z, %u = func.call @f(%y, %w) : (!b, !w) -> (!b, !w)
  %q = onnx.MatMul(%z, %u) : (!b, !w) -> !b
  func.return %q : !b
}
"""

# The gradient of %x is a constant, 0.
CONSTANT_GRADIENT = """
func.func @f(%x: !b, %w: !w) -> !b {
  %s = onnx.Add(%x, %x) : (!b, !b) -> !b
  %m = onnx.Sign(%s) : (!b) -> !b
  %y = onnx.MatMul(%m, %w) : (!b, !w) -> !b
  func.return %y : !b
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> !b {
  %h = onnx.MatMul(%x, %v) : (!b, !w) -> !b
  %y = func.call @f(%h, %w) : (!b, !w) -> !b
  %z = onnx.Add(%y, %h) : (!b, !b) -> !b
  func.return %z : !b
}
"""

UNUSED_ARGUMENT = """
func.func @f(%h: !b, %x: !b, %w: !w) -> !b {
  %y = onnx.MatMul(%x, %w) : (!b, !w) -> !b
  func.return %y : !b
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> !b {
  %h = onnx.MatMul(%x, %v) : (!b, !w) -> !b
  %y = func.call @f(%h, %x, %w) : (!b, !b, !w) -> !b
  %z = onnx.Add(%y, %h) : (!b, !b) -> !b
  func.return %z : !b
}
"""

RESULT_IS_ARGUMENT = """
func.func @f(%x: !b, %w: !w) -> (!b, !b, !w) {
  %y = onnx.MatMul(%x, %w) : (!b, !w) -> !b
  func.return %y, %x, %w : !b, !b, !w
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> (!b, !w) {
  %h, %k, %r = func.call @f(%x, %v) : (!b, !w) -> (!b, !b, !w)
  %s = onnx.Tanh(%r) : (!w) -> !w
  %a = onnx.Add(%h, %k) : (!b, !b) -> !b
  %y, %l, %t = func.call @f(%a, %s) : (!b, !w) -> (!b, !b, !w)
  %u = onnx.Mul(%t, %w) : (!w, !w) -> !w
  %z = onnx.MatMul(%y, %u) : (!b, !w) -> !b
  func.return %z, %t : !b, !w
}
"""

SAME_RESULT_TWICE = """
func.func @f(%x: !b, %w: !w) -> (!w, !b, !w, !b) {
  %y = onnx.MatMul(%x, %w) : (!b, !w) -> !b
  %r = onnx.Tanh(%w) : (!w) -> !w
  func.return %r, %y, %r, %y : !w, !b, !w, !b
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> (!b, !w) {
  %r, %h, %s, %g = func.call @f(%x, %v) : (!b, !w) -> (!w, !b, !w, !b)
  %t = onnx.Mul(%r, %s) : (!w, !w) -> !w
  %k = onnx.Add(%h, %g) : (!b, !b) -> !b
  %y = onnx.MatMul(%k, %t) : (!b, !w) -> !b
  %z = onnx.MatMul(%y, %w) : (!b, !w) -> !b
  func.return %z, %s : !b, !w
}
"""

NO_RESULT_WITH_BATCH = """
func.func @f(%x: !b, %w: !w) -> (!w, !w) {
  %r = onnx.Tanh(%w) : (!w) -> !w
  %s = onnx.Sigmoid(%r) : (!w) -> !w
  func.return %r, %s : !w, !w
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> (!b, !w) {
  %h = onnx.MatMul(%x, %v) : (!b, !w) -> !b
  %r, %s = func.call @f(%h, %w) : (!b, !w) -> (!w, !w)
  %t = onnx.Mul(%r, %s) : (!w, !w) -> !w
  %y = onnx.MatMul(%h, %t) : (!b, !w) -> !b
  func.return %y, %r : !b, !w
}
"""

NESTED_CALLS = """
func.func @g(%x: !b, %w: !w) -> (!w, !b) {
  %y = onnx.MatMul(%x, %w) : (!b, !w) -> !b
  %r = onnx.Tanh(%w) : (!w) -> !w
  func.return %r, %y : !w, !b
}
func.func @f(%x: !b, %w: !w) -> (!b, !w) {
  %r, %y = func.call @g(%x, %w) : (!b, !w) -> (!w, !b)
  %s = onnx.Sigmoid(%r) : (!w) -> !w
  %t, %z = func.call @g(%y, %s) : (!b, !w) -> (!w, !b)
  %u = onnx.Mul(%t, %r) : (!w, !w) -> !w
  func.return %z, %u : !b, !w
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> !b {
  %h, %r = func.call @f(%x, %v) : (!b, !w) -> (!b, !w)
  %s = onnx.Mul(%r, %w) : (!w, !w) -> !w
  %y, %t = func.call @f(%h, %s) : (!b, !w) -> (!b, !w)
  %z = onnx.MatMul(%y, %t) : (!b, !w) -> !b
  func.return %z : !b
}
"""

# What is repeated along the batch: every micro-batch has its part of it.
RESULT_FOR_ANY_BATCH = """
func.func @f(%x: !b, %w: !w) -> (!b, !b) {
  %y = onnx.MatMul(%x, %w) : (!b, !w) -> !b
  %i = onnx.Constant() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %r = onnx.ReduceSum(%w, %i) : (!w, tensor<1xi64>) -> tensor<1x4xf32>
  %n = onnx.Constant() {value = dense<[8, 4]> : tensor<2xi64>} : () -> tensor<2xi64>
  %e = onnx.Expand(%r, %n) : (tensor<1x4xf32>, tensor<2xi64>) -> !b
  func.return %y, %e : !b, !b
}
func.func @main(%x: !b INPUT, %v: !w PARAMETER, %w: !w PARAMETER) -> !b {
  %h, %e = func.call @f(%x, %v) : (!b, !w) -> (!b, !b)
  %t = onnx.Tanh(%e) : (!b) -> !b
  %a = onnx.Add(%h, %t) : (!b, !b) -> !b
  %y, %g = func.call @f(%a, %w) : (!b, !w) -> (!b, !b)
  %z = onnx.Mul(%y, %g) : (!b, !b) -> !b
  func.return %z : !b
}
"""

MODELS = {
    "result without batch": RESULT_WITHOUT_BATCH,
    "constant gradient": CONSTANT_GRADIENT,
    "unused argument": UNUSED_ARGUMENT,
    "result is argument": RESULT_IS_ARGUMENT,
    "same result twice": SAME_RESULT_TWICE,
    "no result with batch": NO_RESULT_WITH_BATCH,
    "nested calls": NESTED_CALLS,
    "result for any batch": RESULT_FOR_ANY_BATCH,
}
DEGREES: list[dict[str, Any]] = [{"k": 2}, {"k": 4, "d": 2}, {"p": 2, "k": 2}]
TRAINING: list[dict[str, Any]] = [
    {"k": 2},
    {"p": 2, "k": 1},
    {"p": 2, "k": 2, "schedule": "gpipe"},
    {"p": 2, "k": 4, "schedule": "1f1b", "d": 2},
    {"p": 2, "k": 2, "schedule": "zb-h1"},
]


def model(name: str) -> ModuleOp:
    aliases = "!b = tensor<8x4xf32>\n!w = tensor<4x4xf32>\n"
    text = MODELS[name].replace("INPUT", '{dist.role = "input", dist.name = "x"}')
    for parameter in "vw":
        attributes = f'{{dist.role = "parameter", dist.name = "{parameter}"}}'
        text = text.replace("PARAMETER", attributes, 1)
    return parse(aliases + text)


pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
"""A comparison of numbers that are none would be blind."""


@pytest.mark.parametrize(
    ("name", "options"), each_once(list(MODELS), [*DEGREES, {"p": 2, "k": 1}]), ids=str
)
def test_inference(name: str, options: dict[str, Any]) -> None:
    module = model(name)
    result = distributed(module, **options)
    assert_same_results(module, result, arguments_of(module))


@pytest.mark.parametrize("optimizer", sampled(["none", "adamw"], 3))
@pytest.mark.parametrize(
    ("name", "options"),
    chosen(
        [(name, options) for name in MODELS for options in TRAINING],
        # Two of each model: the options in turn, and another schedule.
        [
            (name, TRAINING[(i + j) % 5])
            for i, name in enumerate(MODELS)
            for j in (0, 2)
        ],
    ),
    ids=str,
)
def test_training(name: str, options: dict[str, Any], optimizer: str) -> None:
    module = model(name)
    DifferentiatePass(loss="mse", optimizer=optimizer).apply(Context(), module)
    result = distributed(module, **options)
    assert_same_results(module, result, arguments_of(module))
