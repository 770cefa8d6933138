"""Sums work in the memory of an operand exactly where nobody else needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.lowering_cases import run_here
from support.programs import parse
from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.reference import run_program
from distir.lowering.program_source import program_source

T = "tensor<4x4xf32>"
BINARY = f"({T}, {T}) -> {T}"


def program(body: str, results: Sequence[str], functions: str = "") -> ModuleOp:
    """A program of two matrices and a table of indices."""
    arguments = ", ".join(
        f'%{n}: {t} {{dist.role = "input", dist.name = "{n}"}}'
        for n, t in (
            ("x", T),
            ("y", T),
            ("i", "tensor<3xi64>"),
            ("d", "tensor<3x4xf32>"),
        )
    )
    given = ", ".join([T] * len(results))
    returned = ", ".join(results)
    return parse(f"""
    {functions}
    func.func @main({arguments}) -> ({given}) {{
      {body}
      func.return {returned} : {given}
    }}""")


ADD = f"""
func.func private @add(%a: {T}, %b: {T}) -> {T} {{
  %c = onnx.Mul(%b, %b) : {BINARY}
  %e = onnx.Sub(%c, %b) : {BINARY}
  %f = onnx.Neg(%e) : ({T}) -> {T}
  %g = onnx.Add(%a, %f) : {BINARY}
  func.return %g : {T}
}}
"""
"""Adds to its first argument, which its callers may give away."""

TWICE = f"""
func.func private @twice(%a: {T}) -> ({T}, {T}) {{
  %c = onnx.MatMul(%a, %a) : {BINARY}
  %t = onnx.Transpose(%c) {{perm = [1 : i64, 0 : i64]}} : ({T}) -> {T}
  func.return %c, %t : {T}, {T}
}}
"""
"""Returns a matrix and a view of it."""

MATMUL = f"%p = onnx.MatMul(%x, %y) : {BINARY}"
TRANSPOSED = f"%t = onnx.Transpose(%p) {{perm = [1 : i64, 0 : i64]}} : ({T}) -> {T}"
SUM = f"%s = onnx.Add(%p, %y) : {BINARY}"


def call(result: str, operand: str) -> str:
    return f"{result} = func.call @add({operand}, %y) : {BINARY}"


CASES: dict[str, tuple[ModuleOp, int]] = {
    "a value that dies": (program(f"{MATMUL}\n{SUM}", ["%s"]), 1),
    "the second operand": (
        program(f"{MATMUL}\n%s = onnx.Add(%y, %p) : {BINARY}", ["%s"]),
        1,
    ),
    "an argument of the program": (
        program(f"%s = onnx.Add(%x, %y) : {BINARY}", ["%s"]),
        0,
    ),
    "a value that is used later": (program(f"{MATMUL}\n{SUM}", ["%s", "%p"]), 0),
    "a view that is used later": (
        program(f"{MATMUL}\n{TRANSPOSED}\n{SUM}", ["%s", "%t"]),
        0,
    ),
    "a view that was used before": (
        program(
            f"{MATMUL}\n{TRANSPOSED}\n%q = onnx.Mul(%t, %t) : {BINARY}\n{SUM}",
            ["%s", "%q"],
        ),
        1,
    ),
    "a value and itself": (
        program(f"{MATMUL}\n%s = onnx.Add(%p, %p) : {BINARY}", ["%s"]),
        0,
    ),
    "a value and its view": (
        program(f"{MATMUL}\n{TRANSPOSED}\n%s = onnx.Add(%p, %t) : {BINARY}", ["%s"]),
        0,
    ),
    "a constant": (
        program(
            f"%p = onnx.Constant() {{value = dense<2.0> : {T}}} : () -> {T}\n{SUM}",
            ["%s"],
        ),
        0,
    ),
    "what all callers give away": (
        program(f"{MATMUL}\n{call('%s', '%p')}\n{call('%u', '%s')}", ["%u"], ADD),
        1,
    ),
    "what one caller needs": (
        program(f"{MATMUL}\n{call('%s', '%p')}\n{call('%u', '%s')}", ["%u", "%p"], ADD),
        0,
    ),
    "what the entry function was given": (
        program(f"{call('%s', '%x')}\n{call('%u', '%s')}", ["%u"], ADD),
        0,
    ),
    "one of two results in one memory": (
        program(
            f"%p, %t = func.call @twice(%x) : ({T}) -> ({T}, {T})\n{SUM}",
            ["%s", "%t"],
            TWICE,
        ),
        0,
    ),
    "the last of two results in one memory": (
        program(
            f"%p, %t = func.call @twice(%x) : ({T}) -> ({T}, {T})\n"
            f"%q = onnx.Mul(%t, %t) : {BINARY}\n{SUM}",
            ["%s", "%q"],
            TWICE,
        ),
        1,
    ),
}


def values() -> list[Any]:
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((4, 4), dtype=np.float32) for _ in range(2))
    # A row that is looked up twice, and one counted from the end.
    indices = np.array([1, -1, 1])
    return [x, y, indices, random.standard_normal((3, 4), dtype=np.float32)]


def assert_as_the_reference(module: ModuleOp) -> None:
    given = values()
    expected = run_program(module, [v.copy() for v in given])
    found = run_here(module, given)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    for a, b in zip(given, values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_sums(name: str) -> None:
    module, count = CASES[name]
    module.verify()
    assert program_source(module).text.count(".add_(") == count
    assert_as_the_reference(module)


LOOK_UPS = f"%g = train.gather_grad %d, %i like %x {{axis = 0 : i64}} : (tensor<3x4xf32>, tensor<3xi64>, {T}) -> {T}"


@pytest.mark.parametrize(
    ("results", "written"),
    [
        (["%s"], "add_look_ups(p, d, i, in_place=True)"),
        (["%s", "%p"], "add_look_ups(p, d, i)"),
        (["%s", "%g"], "gather_grad("),
    ],
)
def test_look_ups(results: list[str], written: str) -> None:
    """The gradient of tied embeddings is added to that of the head row by row."""
    module = program(f"{MATMUL}\n{LOOK_UPS}\n%s = onnx.Add(%p, %g) : {BINARY}", results)
    module.verify()
    assert written in program_source(module).text
    assert_as_the_reference(module)


def test_look_ups_in_16_bits_are_added_up_first() -> None:
    """Each addition to a row would be rounded."""
    module = program(f"{MATMUL}\n{LOOK_UPS}\n%s = onnx.Add(%p, %g) : {BINARY}", ["%s"])
    narrow = parse(str(module).replace("f32", "bf16"))
    assert "add_look_ups" not in program_source(narrow).text
