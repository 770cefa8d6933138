"""Runs `distir` in this process and returns what a user would see."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from distir.tools.cli import main

TWO_LAYERS = """
func.func @main(
    %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "l0.weight"},
    %w2: tensor<32x16xf32> {dist.role = "parameter", dist.name = "l1.weight"},
    %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}
) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %h = onnx.MatMul(%x, %w1) {scope = "l0"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%a, %w2) {scope = "l1"} : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""
"""A sequential program of two layers, without a weights file."""


@dataclass
class Finished:
    """How a command ended and what it printed."""

    code: int
    output: str
    errors: str


def distir(
    *arguments: str | Path, command: Callable[[list[str]], int | None] = main
) -> Finished:
    """Runs a command of `distir`, or of another tool that is started by `command`."""
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            code = command([str(a) for a in arguments]) or 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Finished(code, output.getvalue(), errors.getvalue())


def succeed(*arguments: str | Path) -> Finished:
    """Runs a command that must succeed."""
    done = distir(*arguments)
    assert done.code == 0, done.errors
    return done


def failure(*arguments: str | Path, code: int = 1) -> str:
    """Runs a command that must fail with one paragraph, and returns it."""
    done = distir(*arguments)
    assert done.code == code, (done.code, done.output, done.errors)
    lines = [line for line in done.errors.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, done.errors
    assert lines[0].startswith("error: "), done.errors
    assert "internal error" not in lines[0], done.errors
    return lines[0]


def write_program(path: Path, text: str = TWO_LAYERS) -> Path:
    """Writes a program to a file."""
    path.write_text(text)
    return path
