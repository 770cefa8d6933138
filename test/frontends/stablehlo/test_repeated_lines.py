"""Lines of StableHLO that were read before are copied: what is read stays the same."""

from __future__ import annotations

import io

import pytest
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError

from distir.errors import DistIRError
from distir.frontends.stablehlo.parser import StablehloParser
from distir.text.location_parser import LocationParser


class _PlainParser(StablehloParser):
    """The parser without the short cut."""

    parse_operation = LocationParser.parse_operation


def _outcome(parser: StablehloParser) -> str:
    """Returns the text of the module, with locations, or the error."""
    try:
        module = parser.parse_module()
    except (ParseError, DistIRError) as error:
        return f"error: {error}"
    shown = io.StringIO()
    Printer(shown, print_generic_format=True, print_debuginfo=True).print_op(module)
    return shown.getvalue()


def _text(*lines: str) -> str:
    """A function with ops in generic form, whose locations are defined at the end."""
    function = ", ".join(
        ["sym_name = @main", "function_type = (tensor<4xf32>, tensor<4xf32>) -> ()"]
    ).replace("@main", '"main"')
    body = "\n".join(
        [
            '%0 = "stablehlo.add"(%a, %b) : (T, T) -> T loc(#loc1)',
            '%1 = "stablehlo.constant"() <{value = dense<1.0> : T}> : () -> T loc(#loc2)',
            '%2 = "stablehlo.custom"(%a) <{n = "loc(#loc1)"}> : (T) -> T loc(#loc1)',
            *lines,
            '"func.return"() : () -> ()',
        ]
    ).replace("T", "tensor<4xf32>")
    return "\n".join(
        [
            f'"builtin.module"() ({{ "func.func"() <{{{function}}}> ({{',
            "^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):",
            body,
            "}) : () -> () }) : () -> ()",
            '#loc1 = loc("first")',
            '#loc2 = loc("second"(#loc1))',
            "#loc = loc(unknown)",
            "",
        ]
    )


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        ('%3 = "stablehlo.add"(%0, %1) : (T, T) -> T loc(#loc2)', True),
        ('%3 = "stablehlo.add"(%0, %1) : (T, T) -> T loc(#loc)', True),
        ('%3 = "stablehlo.add"(%0, %1) : (T, T) -> T', True),
        ('%3 = "stablehlo.add"(%0, %1) : (T, T) -> T loc("here")', True),
        ('%3 = "stablehlo.constant"() <{value = dense<1.0> : T}> : () -> T loc(#loc1)', True),
        ('%3 = "stablehlo.custom"(%0) <{n = "loc(#loc1)"}> : (T) -> T loc(#loc2)', True),
        ('%3, %4 = "stablehlo.add"(%0, %1) : (T, T) -> (T, T) loc(#loc1)', True),
        ('%3 = "stablehlo.neg"(%0) : (T) -> T "stablehlo.end"() : () -> () loc(#loc1)', True),
        ('%3 = "stablehlo.add"(%0, %0) : (T, T) -> T loc(#loc7)', False),
        ('%0 = "stablehlo.add"(%1, %2) : (T, T) -> T loc(#loc1)', False),
        ('%3 = "stablehlo.add"(%0, %9) : (T, T) -> T loc(#loc1)', False),
        ('%3, %4 = "stablehlo.add"(%0, %1) : (T, T) -> T loc(#loc1)', False),
        ('%3 = "stablehlo.add"(%0) : (T, T) -> T loc(#loc1)', False),
    ],
)  # fmt: skip
def test_a_line_that_is_like_one_before(line: str, is_right: bool) -> None:
    text = _text(line, line.replace("%3", "%5").replace("%4", "%6"))
    expected = _outcome(_PlainParser(text, "step"))
    assert expected.startswith("error") is not is_right
    assert _outcome(StablehloParser(text, "step")) == expected


def test_values_of_another_type_are_looked_at_again() -> None:
    text = _text('%3 = "stablehlo.add"(%0, %1) : (tensor<2xf32>, T) -> T loc(#loc1)')
    expected = _outcome(_PlainParser(text, "step"))
    assert expected.startswith("error")
    assert _outcome(StablehloParser(text, "step")) == expected
