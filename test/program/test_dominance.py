"""A value is defined before it is used, whichever tool reads the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import failure, write_program
from support.programs import parse

from distir.errors import DistIRError
from distir.program.checks import check_dominance
from distir.sharding.verification import verify_distribution

T = "tensor<4xf32, #dist.layout<@mesh>>"


def program(body: str) -> str:
    """A distributed program; `T` is the type of all of its values."""
    text = f"""
device.mesh @mesh on @c <d = 2> [0 to 2]
func.func @main(%x: T) -> T {{
  {body}
  func.return %z : T
}}"""
    return text.replace("T", T)


LATER = program("""
  %z = onnx.Neg(%y) : (T) -> T
  %y = onnx.Relu(%x) : (T) -> T
""")
ITSELF = program("%z = onnx.Neg(%z) : (T) -> T")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LATER, "@main: onnx.Neg %z uses %y, the result of onnx.Relu %y"),
        (ITSELF, "@main: onnx.Neg %z uses %z, its own result"),
    ],
)
def test_use_before_definition_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(DistIRError, match="no op before it defines") as error:
        verify_distribution(parse(text))
    assert message in str(error.value)
    path = write_program(tmp_path / "m.mlir", text)
    for command in (
        ("check", path, path),
        ("simulate", path),
        ("lower", path, "-o", tmp_path / "package"),
    ):
        assert message in failure(*command)


def regions(body: str) -> str:
    return f"""
func.func @main(%x: i1, %a: i64) -> i64 {{
  {body}
}}"""


SCOPES = {
    "of the region of an op before it": """
  "test.op"() ({ %in = "test.op"() : () -> i64 }) : () -> ()
  func.return %in : i64""",
    "after the region": """
  "test.op"() ({ "test.use"(%z) : (i64) -> () }) : () -> ()
  %z = "test.op"() : () -> i64
  func.return %z : i64""",
    "of the op that has the region": """
  %z = "test.op"() ({ "test.use"(%z) : (i64) -> () }) : () -> i64
  func.return %z : i64""",
    "of one of two branches": """
  "cf.cond_br"(%x) [^a, ^b] : (i1) -> ()
^a:
  %z = "test.op"() : () -> i64
  "cf.br"() [^c] : () -> ()
^b:
  "cf.br"() [^c] : () -> ()
^c:
  func.return %z : i64""",
}


def any_op(text: str):
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.dialects.func import Func
    from xdsl.parser import Parser

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    context.load_dialect(Func)
    return Parser(context, text).parse_module()


@pytest.mark.parametrize("where", [w for w in SCOPES if "before" not in w])
def test_values_out_of_scope_are_refused(where: str):
    with pytest.raises(DistIRError, match="no op before it defines"):
        check_dominance(any_op(regions(SCOPES[where])))


def test_values_in_scope_are_accepted():
    check_dominance(
        any_op(
            regions("""
  "test.op"() ({
  ^first(%b: i64):
    "test.use"(%a, %b) : (i64, i64) -> ()
    "cf.br"() [^second] : () -> ()
  ^second:
    "test.use"(%a, %b) : (i64, i64) -> ()
  }) : () -> ()
  "cf.cond_br"(%x) [^left, ^right] : (i1) -> ()
^left:
  "cf.br"() [^end] : () -> ()
^right:
  "cf.br"() [^end] : () -> ()
^end:
  func.return %a : i64""")
        )
    )
