"""`distir check` says what two programs do not have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.command_line import distir, failure, succeed, write_program

from distir.interpreters import reference
from distir.tools.comparison import largest_difference

STEP = """
func.func @main(
    %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"},
    %s: tensor<f32> {dist.role = "state", dist.name = "s"},
    %x: tensor<2x4xf32> {dist.role = "input", dist.name = "x"}
) -> (tensor<2x4xf32> {dist.name = "y"}, tensor<4x4xf32> {dist.name = "new w", dist.updates = "w"}, tensor<f32> {dist.name = "new s", dist.updates = "s"}) {
  %y = onnx.MatMul(%x, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %w1 = onnx.Add(%w, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s1 = onnx.Add(%s, %s) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  func.return %y, %w1, %s1 : tensor<2x4xf32>, tensor<4x4xf32>, tensor<f32>
}
"""
TO_F64 = "%s1 = onnx.Cast(%s) {to = 11 : i64} : (tensor<f32>) -> tensor<f64>"
OF_S = "%s1 = onnx.Add(%s, %s) : (tensor<f32>, tensor<f32>) -> tensor<f32>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'"new s"': '"old s"'}, "output 2 is called 'new s' in"),
        (
            {OF_S: TO_F64, 'tensor<f32> {dist.name = "new s"': 'tensor<f64> {dist.name = "new s"',
             "4x4xf32>, tensor<f32>\n": "4x4xf32>, tensor<f64>\n"},
            "output 'new s' is float32[], the next value of 's' in",
        ),
        (
            {', dist.updates = "s"': ""},
            "output 'new s' is float32[], the next value of 's' in",
        ),
        (
            {'dist.name = "new w", dist.updates = "w"': 'dist.name = "new w"'},
            "output 'new w' is float32[4, 4], the next value of 'w' in",
        ),
        ({"tensor<2x4": "tensor<3x4"}, "output 'y' is float32[2, 4] in"),
        ({"%w1 = onnx.Add(%w, %w)": "%w1 = onnx.Sub(%w, %w)"}, ""),
    ],
    ids=["name", "dtype", "no update", "no update of a weight", "shape", "value"],
)  # fmt: skip
def test_programs_that_differ(tmp_path: Path, changes: dict[str, str], message: str):
    text = STEP
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    one = write_program(tmp_path / "one.mlir", STEP)
    other = write_program(tmp_path / "other.mlir", text)
    assert succeed("check", one, one).output.endswith("all 3 outputs are equal\n")
    if message:
        found = failure("check", one, other)
        assert message in found and "not the same program" in found
    else:
        done = distir("check", one, other)
        assert done.code == 1 and done.output.count("DIFFERS") == 1
        assert done.output.endswith(
            "1 of 3 outputs differ by more than the tolerance\n"
        )


def test_equal_outputs_of_layers_are_one_row(tmp_path: Path):
    """An output that differs keeps a row of its own."""
    two = """
func.func @main(%x: tensor<4xf32> {dist.role = "input", dist.name = "x"})
    -> (tensor<4xf32> {dist.name = "h.0.y"}, tensor<4xf32> {dist.name = "h.1.y"}, tensor<4xf32> {dist.name = "h.2.y"}) {
  %y = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %z = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y, %y, %z : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}"""
    one = write_program(tmp_path / "one.mlir", two)
    other = write_program(
        tmp_path / "other.mlir", two.replace("%z = onnx.Relu", "%z = onnx.Neg")
    )
    rows = [line.split() for line in succeed("check", one, one).output.splitlines()]
    assert ["h.*.y", "(3)"] in [row[:2] for row in rows]
    rows = [line.split() for line in distir("check", one, other).output.splitlines()]
    assert ["h.*.y", "(2)"] in [row[:2] for row in rows]
    (differs,) = (row for row in rows if row[-1:] == ["DIFFERS"])
    assert differs[0] == "h.2.y"


def test_results_that_are_not_what_they_are_declared_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both programs compute the same, and neither what its types say."""

    def sloppy(op: object, inputs: list[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(right(op, inputs)[0], np.float64)]  # type: ignore[arg-type]

    right = reference.evaluate
    monkeypatch.setattr(reference, "evaluate", sloppy)
    program = write_program(tmp_path / "one.mlir", STEP)
    message = failure("check", program, program)
    assert "output 'y' of" in message
    assert "is declared as float32[2, 4], but is float64[2, 4]" in message


def test_large_arrays_are_compared_piece_by_piece():
    left = np.zeros(3_000_000, np.float32)
    right = left.copy()
    left[5], right[2_999_999] = -8, 4
    right[5] = -8
    assert largest_difference(left, right) == (4, 0.5)
    right[1_500_000] = np.nan
    assert largest_difference(left, right) == (np.inf, np.inf)


def test_sequences_and_texts_are_compared(tmp_path: Path):
    text = """
func.func @main(%x: tensor<4xf32> {dist.role = "input", dist.name = "x"}) -> !onnx.seq<tensor<2xf32>> {
  %n = onnx.Constant() {value = dense<2> : tensor<i64>} : () -> tensor<i64>
  %y = onnx.SplitToSequence(%x, %n) : (tensor<4xf32>, tensor<i64>) -> !onnx.seq<tensor<2xf32>>
  func.return %y : !onnx.seq<tensor<2xf32>>
}"""
    program = write_program(tmp_path / "one.mlir", text)
    succeed("check", program, program)
    words = np.array(["a", "b"], object)
    assert largest_difference(words, words.copy()) == (0, 0)
    assert largest_difference(words, words[::-1]) == (np.inf, np.inf)
