"""What tools verify of a program that they read or have changed."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import VerifyException

from distir.text import ProgramParser, new_context
from distir.tools.files import verify

PROGRAM = """
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = func.call @f(%x) {scope = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %b = func.call @f(%a) {scope = "h.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %c = train.sgd %a, %x {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %d = train.sgd %b, %x {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %d : tensor<4xf32>
}
"""

SECOND_CALL = '%b = func.call @f(%a) {scope = "h.1"} : (tensor<4xf32>) -> tensor<4xf32>'


def _verify(text: str) -> None:
    verify(ProgramParser(new_context(), text).parse_module())


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (SECOND_CALL, SECOND_CALL.replace("@f", "@g"), "could not be found"),
        (
            SECOND_CALL,
            "%b = func.call @f(%a, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>",
            "number of operands",
        ),
        (
            SECOND_CALL,
            '%b = "func.call"(%a) : (tensor<4xf32>) -> tensor<4xf32>',
            "callee",
        ),
        (
            "%b, %x {learning_rate = 0.1",
            "%b, %x {learning_rate = -0.1",
            "not negative",
        ),
    ],
)
def test_alike_is_verified_once_and_all_else_each_time(
    before: str, after: str, message: str
) -> None:
    _verify(PROGRAM)
    text = PROGRAM.replace(before, after)
    assert text != PROGRAM
    with pytest.raises(VerifyException, match=message):
        _verify(text)
