"""Attributes of the `dist` dialect that do not exist, or have values of another kind."""

import re

import pytest

from distir.errors import DistIRError
from distir.program.checks import check_dist_attributes
from distir.text import ProgramParser, new_context

PROGRAM = """
func.func @main(%w: tensor<4xf32> {ARGUMENT}) -> (tensor<4xf32> {RESULT}) attributes {FUNCTION} {
  %y = onnx.Relu(%w) {OP} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
"""


def read(place: str, attribute: str) -> None:
    text = PROGRAM.replace(place, attribute)
    for other in ("ARGUMENT", "RESULT", "FUNCTION", "OP"):
        text = text.replace(f"{{{other}}}", '{other = "x"}')
    check_dist_attributes(ProgramParser(new_context(), text).parse_module())


@pytest.mark.parametrize(
    ("place", "attribute", "message"),
    [
        (
            "ARGUMENT",
            "dist.role = 3 : i64",
            "argument 0 (%w) of @main has dist.role = 3 : i64; it must be text in quotes",
        ),
        ("ARGUMENT", "dist.role", "has dist.role; it must be text in quotes"),
        ("ARGUMENT", 'dist.role = "paramter"', "did you mean 'parameter'?"),
        (
            "ARGUMENT",
            'dist.rol = "input"',
            "has dist.rol, but there is no such attribute",
        ),
        ("ARGUMENT", "dist.forzen", "did you mean 'dist.frozen'?"),
        ("ARGUMENT", 'dist.frozen = "yes"', "it must be no value (dist.frozen alone)"),
        ("ARGUMENT", 'dist.layout = "x"', "it must be a layout"),
        ("ARGUMENT", "dist.fixed = [1 : i64]", "it must be a list of texts"),
        ("ARGUMENT", "dist.repacked = [1 : i64]", "it must be a dictionary"),
        ("ARGUMENT", "dist.default = 1 : i64", "it must be a number"),
        (
            "RESULT",
            'dist.role = "parameter"',
            "the roles of results are loss, gradient",
        ),
        (
            "RESULT",
            "dist.padded = 4 : i64",
            "result 0 of @main has dist.padded = 4 : i64",
        ),
        ("FUNCTION", "dist.compiled", "@main has dist.compiled; it must be text"),
        ("OP", "scope = 3 : i64", "onnx.Relu %y in @main has scope = 3 : i64"),
        ("OP", 'dist.stage = "1"', "it must be an integer"),
        ("OP", "dist.stage_start = 1 : i64", "it must be text in quotes"),
        ("OP", "dist.result_layouts = [1 : i64]", "it must be a list of layouts"),
    ],
)
def test_refused(place: str, attribute: str, message: str):
    with pytest.raises(DistIRError, match=re.escape(message)):
        read(place, attribute)


def test_accepted():
    read("OP", "dist.stage_start")
    read("OP", 'scope = "é"')
    read("OP", "toy.paint")
    read("ARGUMENT", 'dist.role = "input", dist.name = "x"')
