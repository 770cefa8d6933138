"""Text that is no program is refused at once; text that xDSL misreads is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import write_program
from xdsl.dialects.builtin import BytesAttr, DenseIntOrFPElementsAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.utils.exceptions import ParseError

from distir.text import ProgramParser, new_context

MESH = "device.mesh @mesh on @c <d = 2> "


def attribute(text: str) -> Attribute:
    """The attribute that a module of that text has."""
    module = ProgramParser(
        new_context(), f"builtin.module attributes {{a = {text}}} {{}}"
    ).parse_module()
    return module.attributes["a"]


def refusal(text: str) -> str:
    with pytest.raises(ParseError) as error:
        ProgramParser(new_context(), text).parse_module()
    return error.value.msg


@pytest.mark.parametrize("tool", ["distir-opt", "distir"])
def test_string_without_end_is_refused_at_once(tmp_path: Path, tool: str):
    program = write_program(tmp_path / "m.mlir", f'func.func @main("{"a" * 60}')
    arguments = ["simulate"] if tool == "distir" else []
    command = [Path(sys.executable).with_name(tool), *arguments, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {program}:1:17: End of file reached")


def test_long_strings_are_read():
    text = "a\\n" * 100_000
    assert attribute(f'"{text}"') == StringAttr("a\n" * 100_000)


@pytest.mark.parametrize("text", ["dénse/kernel:0", "重み", "a\n\té\\", "🙂"])
def test_text_outside_of_ascii_is_text_again(text: str):
    printed = str(StringAttr(text))
    assert printed.isascii()
    assert attribute(printed) == StringAttr(text)
    assert attribute(f'"é{text}"'.replace("\\", "\\\\").replace("\n", "\\0A")) == (
        StringAttr("é" + text)
    )


def test_bytes_that_are_no_text_stay_bytes():
    assert attribute('"\\FF\\FE"') == BytesAttr(b"\xff\xfe")


def test_symbols_outside_of_ascii():
    text = 'func.func @"größe"() { func.return }'
    module = ProgramParser(new_context(), text).parse_module()
    again = ProgramParser(new_context(), str(module)).parse_module()
    assert module.is_structurally_equivalent(again)
    assert '@"gr' in str(again)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MESH + "[0 to 4000000000]", "these are 4000000000 devices"),
        (MESH + "[0 to 100000, 0 to 100000]", "these are 200000 devices"),
        (MESH + f"[0 to {10**30} step 2]", "devices; there may be at most"),
        (MESH + f"[0 to {'9' * 5000}]", "more than 1000 digits"),
        (MESH.replace("2", "²") + "[0]", "Unexpected character: ²"),
        ("func.func @f() { " + "[" * 5000, "block definition"),
        ("func.func @f() { %a = onnx.Constant() {value = " + "[" * 5000, "too deep"),
        (f"func.func @f(%x: tensor<4x{'9' * 5000}xf32>) {{}}", "more than 1000"),
        ('func.func @"\\FF"() { func.return }', "cannot be read"),
        ("#a = dense<1> : tensor<2xi99999999>", "cannot be read"),
        ("#a = dense<[1.0e308]> : tensor<1xf32>", "cannot be read"),
    ],
)
def test_text_that_is_no_program(text: str, message: str):
    assert message in refusal(text)


@pytest.mark.parametrize("literal", ["0", "0.5", "true", '"0x00"', "-1"])
def test_constant_that_fills_memory_is_refused(literal: str):
    element = {"0.5": "f32", "true": "i1", '"0x00"': "i8"}.get(literal, "i64")
    text = f"builtin.module attributes {{a = dense<{literal}> : tensor<{10**12}x{element}>}} {{}}"
    assert "at most 268435456 can be in a program" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "dense<0> : tensor<3x2xi64>",
        "dense<-1.500000e+00> : tensor<4xf32>",
        "dense<true> : tensor<2xi1>",
        "dense<> : tensor<0xi64>",
        "dense<[1, 2]> : tensor<2xi8>",
        "dense<7> : tensor<i32>",
    ],
)
def test_constants_are_read_as_they_are_written(text: str):
    constant = attribute(text)
    assert isinstance(constant, DenseIntOrFPElementsAttr)
    assert str(constant) == text
