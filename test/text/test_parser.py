"""The parser's short cuts change nothing: not what is read, nor what is refused and how."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import IS_THOROUGH, tries
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer

from distir.errors import DistIRError
from distir.text import ProgramParser, new_context
from distir.text.lexer import ProgramLexer

FILES = sorted((Path(__file__).parents[1] / "filecheck").rglob("*.mlir"))

CONTEXT = new_context()
"""Read into again and again: registering dialects takes longer than reading."""

ALIASES = """
!w = tensor<4x4xf32, #dist.layout<@mesh, [{}, {t}]>>
device.mesh @mesh on @box <t = 2> [0 to 2]
func.func @main(%0: !w, %a.b-c$: !w) -> (!w, !w) {
  // A comment, with %names and "quotes.
  %1, %2 = func.call @f(%0, %a.b-c$) {scope = "a \\22 } b"} : (!w, !w) -> (!w, !w)
  %3:2 = func.call @f(%1, %2) : (!w,  !w) -> (!w, !w)
  %4 = onnx.Relu(%3#1) {x = -1 : i64, y = [0x1F, 0], z = 1.5e-3 : f32} : (!w) -> !w
  func.return %3#0, %4 : !w, !w
}
func.func private @f(!w, !w) -> (!w, !w)
"""


class _PlainLexer(ProgramLexer):
    lex = MLIRLexer.lex


class _PlainParser(ProgramParser):
    """The parser without its short cuts."""

    parse_optional_type = Parser.parse_optional_type
    parse_optional_dictionary_attr_dict = Parser.parse_optional_dictionary_attr_dict
    parse_optional_properties_dict = Parser.parse_optional_properties_dict
    parse_optional_function_type = Parser.parse_optional_function_type
    parse_comma_separated_list = Parser.parse_comma_separated_list
    parse_optional_comma_separated_list = Parser.parse_optional_comma_separated_list
    parse_operation = Parser.parse_operation
    _parse_block_body = Parser._parse_block_body

    def __init__(self, ctx: Context, text: str, name: str):
        super().__init__(ctx, text, name)
        self._parser_state = ParserState(_PlainLexer(Input(text, name)))


def _outcome(parser: type[ProgramParser], text: str) -> ModuleOp | str:
    """The module, or what is wrong with the text."""
    try:
        return parser(CONTEXT, text, "m.mlir").parse_module()
    except (ParseError, VerifyException, DistIRError) as error:
        return str(error)


def _assert_same(text: str) -> None:
    ours = _outcome(ProgramParser, text)
    theirs = _outcome(_PlainParser, text)
    if isinstance(theirs, ModuleOp):
        assert isinstance(ours, ModuleOp), ours
        assert str(ours) == str(theirs)
    else:
        assert ours == theirs


def test_every_lit_file_is_read_alike() -> None:
    """
    Those that are in error included; they are many, so this is one test. `make test` reads
    every second one.
    """
    assert len(FILES) > 100
    for file in FILES[:: 1 if IS_THOROUGH else 2]:
        for part in file.read_text().split("// -----"):
            _assert_same(part)


def test_aliases_tuples_and_comments() -> None:
    _assert_same(ALIASES)
    module = _outcome(ProgramParser, ALIASES)
    assert isinstance(module, ModuleOp)
    assert 'scope = "a \\22 } b"' in str(module)


@pytest.mark.parametrize("name", ["!w-", "!-w", "!w.x", "!$w", "!w1"])
def test_names_of_types(name: str) -> None:
    """What belongs to the name of a type, and what cannot be one, xDSL says."""
    _assert_same(ALIASES.replace("!w", name))
    _assert_same(ALIASES.replace("!w =", f"{name} ="))


@pytest.mark.parametrize(
    "op",
    [
        '%3 = onnx.Add(%2, %w) {scope = "b"} : (T, T) -> T',
        '%s.1 = onnx.Add(%2, %w) {scope = "b.*"} : (T, T) -> T',
        '%3 = onnx.Add(%0, %0) {scope = "b"} : (T, T) -> T // %0, a comment',
        "%3 = onnx.Add(%0, %0) : (T, T) -> T",
        '%3 = onnx.Add(%0, %0) {scope = "b\\22"} : (T, T) -> T',
        '%3:1 = onnx.Add(%0, %0#0) {scope = "b"} : (T, T) -> T',
    ],
)
def test_ops_that_were_read_before(op: str) -> None:
    """An op is known by its text without the names of values and its scope."""
    text = _after_an_add(op)
    assert isinstance(_outcome(_PlainParser, text), ModuleOp)
    _assert_same(text)


@pytest.mark.parametrize(
    "lines",
    [
        ["%c = func.call @g(%y) {n = 1 : i64} : (!w) -> !u", "%d = func.call @f(%x) {n} : (!u) -> !w"],
        ['%c, %d = func.call @h(%y, %x) {scope = "b"} : (!w, T) -> (!u, T)', "%e = func.call @f(%d) : (T) -> !w"],
        ["%c = func.call @g(%y) : (!w) -> !u", "%d = func.call @f(%x) : (!u) -> !w"],
        ["%c = onnx.Relu(%y) : (!w) -> !w", "%d = onnx.Relu(%x) : (!u) -> !w"],
        ["%c = onnx.Relu(%y) : (!w) -> !v", "%d = onnx.Relu(%y) : (!v) -> !w"],
        ["%c = onnx.Relu(%x) {t = !u} : (!u) -> T", "%d = onnx.Relu(%y) {t = !u} : (!w) -> T"],
        ["%c = onnx.Add(%x, %x) : (T, !u) -> !u", "%d = onnx.Add(%x, %y) : (T, !w) -> !u"],
        ['%c = onnx.Relu(%x) {t = "!u"} : (!u) -> T', '%d = onnx.Relu(%y) {t = "!u"} : (!w) -> T'],
        ['%c = onnx.Relu(%x) {t = "func.call @f("} : (!u) -> !u', "%d = func.call @f(%x) : (!u) -> !w"],
    ],
)  # fmt: skip
def test_ops_that_differ_in_names_of_types_and_callees(lines: list[str]) -> None:
    """What is read of an op that is known but for names is what its text says."""
    text = _with_calls(lines)
    assert isinstance(_outcome(_PlainParser, text), ModuleOp) is ("!v" not in text)
    _assert_same(text)


@pytest.mark.parametrize(
    "line",
    [
        "%c = func.call @h(%y, %x) : (!w, T) -> (!u, T)",
        "%c = func.call @f(%x) : (!u, !u) -> !w",
        "%c = func.call @f(%x) : (!w) -> !w",
        "%c = func.call @f(%x) : (!u) -> !v",
        "%c = func.call @f(%x) : (!u) -> (!w, !w)",
        "%c = func.call @f(%z) : (!u) -> !w",
        "%x = func.call @f(%x) : (!u) -> !w",
        "%c = func.call @f(%c) : (!w) -> !w",
        "%c = func.call @f(%x) : (!u, ) -> !w",
        "func.return %x, %y : !u",
        "func.return %x : !w",
    ],
)
def test_calls_and_returns_that_are_wrong(line: str) -> None:
    text = _with_calls([line])
    assert isinstance(_outcome(_PlainParser, text), str)
    _assert_same(text)


def _with_calls(lines: list[str]) -> str:
    """Returns a program whose entry function has the ops `lines`."""
    signature = "(%x: !u, %y: !w) -> !w"
    return "\n".join(
        [
            "!u = tensor<4xf32>",
            "!w = tensor<8xf32>",
            "func.func private @f(!u) -> !w",
            "func.func private @g(!w) -> !u",
            "func.func private @h(!w, !u) -> (!u, !u)",
            f"func.func @main{signature} {{",
            "%a = func.call @f(%x) : (!u) -> !w",
            "%b = onnx.Relu(%x) : (!u) -> !u",
            *lines,
            "func.return %y : !w",
            "}",
        ]
    ).replace("T", "tensor<4xf32>")


@pytest.mark.parametrize(
    "op",
    [
        '%3 = onnx.Add(%0, %5) {scope = "b"} : (T, T) -> T',
        '%2 = onnx.Add(%0, %0) {scope = "b"} : (T, T) -> T',
        '%3 = onnx.Add(%0, %v) {scope = "b"} : (T, T) -> T',
        '%3, %4 = onnx.Add(%0, %0) {scope = "b"} : (T, T) -> T',
        '%3 = onnx.Add(%0, %0) {scope = "b"} : (T, T) -> T\n, T',
        '%3 = onnx.Add(%0, %0) {scope = "b"} : (T, T)',
        '%3 = onnx.Add(%0#1, %0) {scope = "b"} : (T, T) -> T',
        "%3 = onnx.Add(%0, %0) {scope} : (T, T) -> T",
        "%3 = onnx.Add(%0, %0) {scope =} : (T, T) -> T",
        '%3 = onnx.Add(%0, %0) {scope = "b"} : (T, T) -> T %4',
    ],
)
def test_ops_that_were_read_before_are_checked_again(op: str) -> None:
    """An op is known by its text, but its values are checked each time."""
    text = _after_an_add(op)
    assert isinstance(_outcome(_PlainParser, text), str)
    _assert_same(text)


def _after_an_add(op: str) -> str:
    return f"""
      func.func @main(%0: T, %w: T, %v: tensor<2x4xf32>) {{
        %2 = onnx.Add(%0, %w) {{scope = "a"}} : (T, T) -> T
        {op}
        func.return
      }}""".replace("T", "tensor<4xf32>")


@settings(max_examples=tries(60), deadline=None)
@given(data=st.data())
def test_broken_text_gets_the_same_message(data: st.DataObject) -> None:
    """A character is taken out, put in or put elsewhere, anywhere."""
    text = ALIASES
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        new = data.draw(st.sampled_from(["", *' ,:#%!@(){}<>="-x0\n']))
        text = text[:at] + new + text[at + data.draw(st.integers(0, 2)) :]
    _assert_same(text)


def test_values_named_by_numbers_can_be_copied() -> None:
    text = """func.func @main(%_1: tensor<2xf32>, %_2_3: tensor<2xf32>) -> tensor<2xf32> {
      %_4_5 = onnx.Add(%_1, %_2_3) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
      %_6_7 = onnx.Add(%_4_5, %_2_3) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
      func.return %_6_7 : tensor<2xf32>
    }"""
    module = ProgramParser(new_context(), text).parse_module()
    copy = module.clone().clone().clone()
    assert copy.is_structurally_equivalent(module)


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        ('%x: T {dist.name = "a"}, %y: !w {dist.name = "b", n = 3 : i64}', True),
        ('%x: T {dist.name = "a}, %z: T) {"}, %y: T', True),
        ('%x: T {dist.name = "a}, %z: T"}, %y: T', True),
        ('%x: T {dist.name = "\\22}, %z: T"}, %y: T', True),
        ('%x: T {dist.name = "a", n = {m = "b"}}, %y: T', True),
        ("%x: T {n = dense<[1, 2]> : tensor<2xi64>, u}, %y: T {}", True),
        ("%x : T, %y: T", True),
        ("%x: T,\n  %y: T // a comment, %z: T\n", True),
        ("%x: T {n = !w}, %y: !w {n = !w}", True),
        ("%x: T, %x: T", False),
        ("%x: T, %y", False),
        ("%x: T, %y: T,", False),
        ("%x: T, %y: !unknown", False),
        ("%x: T %y: T", False),
        ("%x: T, T", False),
        ("%x: T {n = 1 : i64, n = 2 : i64}, %y: T", False),
        ('%x: T {n = "a", n = "b"}, %y: T', False),
        ('%x: T {n = "a", %y: T', False),
        ('%x: T {n = "a}, %y: T', False),
        ("%x: T {n = }, %y: T", False),
        ("%x: T {n = !unknown}, %y: T", False),
        ("%x: T, %y#1: T", False),
    ],
)
def test_arguments_of_functions(arguments: str, is_right: bool) -> None:
    """They are read at once where their text allows it; errors name the same place."""
    text = f"""!w = tensor<8xf32>
      func.func private @before(%x: T, %y: T {{n = "a"}}) {{
        func.return
      }}
      func.func @main({arguments}) {{
        %3 = onnx.Add(%x, %x) : (T, T) -> T
        func.return
      }}""".replace("T", "tensor<4xf32>")
    assert isinstance(_outcome(_PlainParser, text), ModuleOp) is is_right
    _assert_same(text)


@pytest.mark.parametrize(
    ("results", "is_right"),
    [
        ("(T, !w)", True),
        ('(T {dist.name = "a"}, !w {n = 1 : i64, u})', True),
        ('(T {n = "a}, T)"}, !w)', True),
        ('(T {n = {m = "b"}}, !w {})', True),
        ("( T, !w )", True),
        ("(T ,\n  !w)", True),
        ("(T, !w,)", False),
        ("(T, )", False),
        ("(T !w)", False),
        ("(T, !unknown)", False),
        ("(T, !w", False),
        ("(T, %x)", False),
        ("(T {n = 1 : i64, n = 2 : i64}, !w)", False),
        ('(T {n = "a", n = "b"}, !w)', False),
        ("(T {n = }, !w)", False),
    ],
)
def test_results_of_functions(results: str, is_right: bool) -> None:
    text = f"""!w = tensor<8xf32>
      func.func @main(%x: T, %y: !w) -> {results} {{
        func.return %x, %y : T, !w
      }}""".replace("T", "tensor<4xf32>")
    assert isinstance(_outcome(_PlainParser, text), ModuleOp) is is_right
    _assert_same(text)


@pytest.mark.parametrize(
    ("properties", "is_right"),
    [
        ('<{function_type = (T) -> T, sym_name = "f"}>', True),
        ('<{function_type = (T) -> T, sym_name = "f", sym_name = "g"}>', False),
        ('<{function_type = (T) -> T, sym_name = "f}>"}>', True),
        ("<{function_type = (T) -> , sym_name = 3 : i64}>", False),
        ("<{function_type = (T) -> T}>", False),
    ],
)
def test_properties_in_generic_form(properties: str, is_right: bool) -> None:
    text = f"""
      "func.func"() <{{function_type = (T) -> T, sym_name = "e"}}> ({{
        ^bb0(%0: T):
          "func.return"(%0) : (T) -> ()
      }}) : () -> ()
      "func.func"() {properties} ({{
        ^bb0(%0: T):
          "func.return"(%0) : (T) -> ()
      }}) : () -> ()""".replace("T", "tensor<4xf32>")
    _assert_same(text)
    outcome = _outcome(_PlainParser, text)
    if isinstance(outcome, ModuleOp):
        outcome.verify()
    assert isinstance(outcome, ModuleOp) is is_right
