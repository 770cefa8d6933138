"""Dropout of imported programs: which there is, its numbers, and who draws them."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import parse
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.train_dropout import TrainDropoutPass
from distir.program import argument_names, entry_function

CONSTANTS = """
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %on = onnx.Constant() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
"""
X = "tensor<8x12xf32>"
DROP = f"({X}, tensor<f32>, tensor<i1>) -> {X}"


def function(name: str, *body: str, role: str = "") -> str:
    """A function of `%x` that returns the last value, called `%y`."""
    lines = "\n".join(f"  {line}" for line in body)
    return f"""
func.func {name}(%x: {X}{role}) -> {X} {{{CONSTANTS}{lines}
  func.return %y : {X}
}}"""


MAIN = ' {dist.name = "x", dist.role = "input"}'


def after(*functions: str, seed: int = 0) -> ModuleOp:
    module = parse("\n".join(functions))
    TrainDropoutPass(seed).apply(Context(), module)
    module.verify()
    return module


def kept(module: ModuleOp, step: int = 0) -> np.ndarray:
    """The result for ones."""
    values = [np.ones((8, 12), np.float32), np.array(step, np.int64)]
    return run_program(module, values)[0]


def call(name: str, result: str, operand: str) -> str:
    return f"{result} = func.call @{name}({operand}) : ({X}) -> {X}"


def test_every_call_of_a_function_draws_other_numbers():
    """
    From two callers, one of which is called twice, and at different depths: no two of
    five masks agree, in the first steps.
    """
    masks: list[np.ndarray] = []
    leaf = function("@leaf", f"%y = onnx.Dropout(%x, %half, %on) : {DROP}")
    middle = function("@middle", call("leaf", "%a", "%x"), call("leaf", "%y", "%a"))
    total = f"onnx.Add(%a, %b) : ({X}, {X}) -> {X}"
    # Each @leaf keeps half of the ones and doubles them; one at a time is let through.
    calls = [call("middle", "%a", "%x"), call("middle", "%b", "%x"), f"%y = {total}"]
    both = after(leaf, middle, function("@main", *calls, role=MAIN))
    for step in range(3):
        found = kept(both, step)
        # Both twice: of 0, 1 and 2 masks of a quarter each.
        assert set(np.unique(found)) == {0, 4, 8}
        masks.append(found)
    assert not np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[1], masks[2])
    mixed = [call("leaf", "%a", "%x"), call("middle", "%b", "%x"), f"%y = {total}"]
    found = kept(after(leaf, middle, function("@main", *mixed, role=MAIN)))
    assert {2, 4, 6} <= set(np.unique(found))


def test_steps_that_are_counted_already():
    text = f"""
    func.func @main(%x: {X} {{dist.name = "x", dist.role = "input"}},
        %s: tensor<i64> {{dist.name = "optimizer.step", dist.role = "state", dist.counter}}) -> {X} {{
      {CONSTANTS}
      %a = train.dropout %x, %s {{ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64}} : ({X}, tensor<i64>) -> {X}
      %y = onnx.Dropout(%a, %half, %on) : {DROP}
      func.return %y : {X}
    }}"""
    module = after(text)
    assert argument_names(entry_function(module)) == ["x", "optimizer.step"]
    assert "stream = 1" in str(module)
    assert set(np.unique(kept(module))) == {0, 4}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("%y = onnx.Dropout(%x, %r, %on)", "told its ratio at run time"),
        ("%y, %m = onnx.Dropout(%x, %half, %on)", "uses the mask"),
        ("%y = onnx.Dropout(%x, %one, %on)", "has the ratio 1.0"),
    ],
)
def test_dropout_that_cannot_be_trained(line: str, word: str):
    mask = "%m" in line
    types = f"{X}, tensor<8x12xi1>" if mask else X
    result = f"({types})" if mask else types
    module = parse(f"""
    func.func @main(%x: {X} {{dist.role = "parameter", dist.name = "x"}}, %r: tensor<f32>) -> {result} {{
      {CONSTANTS}
      %one = onnx.Constant() {{value = dense<1.0> : tensor<f32>}} : () -> tensor<f32>
      {line} {{scope = "net.drop"}} : ({X}, tensor<f32>, tensor<i1>) -> {result}
      func.return %y{", %m" if mask else ""} : {types}
    }}""")
    with pytest.raises(DistIRError, match=word) as caught:
        DifferentiatePass(loss="mse").apply(Context(), module)
    assert "onnx.Dropout %y (in net.drop)" in str(caught.value)


def test_other_random_ops_are_refused():
    module = parse(f"""
    func.func @main(%x: {X} {{dist.role = "parameter", dist.name = "x"}}) -> {X} {{
      %m = onnx.Bernoulli(%x) {{scope = "net.noise"}} : ({X}) -> {X}
      %y = onnx.Mul(%x, %m) : ({X}, {X}) -> {X}
      func.return %y : {X}
    }}""")
    with pytest.raises(DistIRError, match=r"onnx.Bernoulli %m \(in net.noise\) draws"):
        DifferentiatePass(loss="mse").apply(Context(), module)


def test_every_distribution_draws_the_same_bits():
    leaf = function("@leaf", f"%y = onnx.Dropout(%x, %half, %on) : {DROP}")
    main = function(
        "@main", call("leaf", "%a", "%x"), call("leaf", "%y", "%a"), role=MAIN
    )
    module = after(leaf, main)
    for options in ({"d": 4}, {"d": 2, "t": 2, "shard": ("x:1=t:3",)}):
        other = distributed(module, **options)
        for step in (0, 5):
            np.testing.assert_array_equal(kept(other, step), kept(module, step))
