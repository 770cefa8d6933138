"""Locations in the forms of upstream MLIR: aliases that come later, ranges, call sites."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import ParseError

from distir.program import entry_function
from distir.program.locations import line_of
from distir.text.parser import ProgramParser, new_context

TEXT = """
func.func @main(%x: tensor<8xf32> loc("x")) -> tensor<8xf32> {
  %a = "onnx.Relu"(%x) : (tensor<8xf32>) -> tensor<8xf32> loc(#loc3)
  %b = "onnx.Relu"(%a) : (tensor<8xf32>) -> tensor<8xf32> loc(fused<"p">["a.py":1:2, #loc1])
  %c = "onnx.Relu"(%b) : (tensor<8xf32>) -> tensor<8xf32> loc("b.py":5:2 to 6:4)
  %d = "onnx.Relu"(%c) : (tensor<8xf32>) -> tensor<8xf32> loc(#loc4)
  func.return %d : tensor<8xf32> loc(#loc)
}
#loc = loc(unknown)
#loc1 = loc("model.py":12:3 to :9)
#loc2 = loc(callsite(#loc1 at #loc))
#loc3 = loc("relu"(#loc2))
#loc4 = loc(callsite("lib/site-packages/flax/linear.py":7:1 at #loc3))
"""


def lines(text: str) -> list[str]:
    module = ProgramParser(new_context(), text).parse_module()
    return [line_of(op.location) for op in entry_function(module).body.block.ops]


def test_every_form_is_read() -> None:
    """Of a call site, the innermost line outside of installed packages counts."""
    expected = ["model.py:12", "a.py:1", "b.py:5", "model.py:12", ""]
    assert lines(TEXT) == expected


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("#loc1 at #loc)", "#loc3 at #loc)", "location '#loc3' is defined by itself"),
        ("#loc = loc(unknown)", "", "undefined symbol alias '#loc'"),
        ("#loc = loc(unknown)", "#loc1 = loc(unknown)", "re-declaration|undefined"),
    ],
)
def test_wrong_aliases_are_errors(old: str, new: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        lines(TEXT.replace(old, new))
