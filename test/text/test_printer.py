"""Programs are written with names for their types, and read back as they were."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from support.thoroughness import IS_THOROUGH
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.utils.exceptions import ParseError, VerifyException

from distir.errors import DistIRError
from distir.text import ProgramParser, ProgramPrinter, ProgramTarget
from distir.text.number_printer import NumberPrinter
from distir.tools.files import new_context

PROGRAM = """
device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
func.func @main(%x: tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>,
                %w: tensor<16x32xf32, #dist.layout<@mesh, [{}, {t:8}]>>)
                  -> tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t:8}]>> {
  %0 = onnx.Relu(%x) : (tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>) -> tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>
  %1 = onnx.MatMul(%0, %w) : (tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>, tensor<16x32xf32, #dist.layout<@mesh, [{}, {t:8}]>>) -> tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t:8}]>>
  func.return %1 : tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t:8}]>>
}
"""


class _PlainPrinter(ProgramPrinter):
    """The printer without its short cuts."""

    print_op = NumberPrinter.print_op
    print_attr_dict = NumberPrinter.print_attr_dict
    print_list = NumberPrinter.print_list


def _assert_same(module: ModuleOp) -> None:
    for with_locations in (False, True):
        texts: list[str] = []
        for kind in (ProgramPrinter, _PlainPrinter):
            stream = io.StringIO()
            kind(stream).print_program(module, with_locations=with_locations)
            texts.append(stream.getvalue())
        assert texts[0] == texts[1]


def _read(text: str) -> ModuleOp:
    return ProgramParser(new_context(), text).parse_module()


def _printed(module: ModuleOp) -> str:
    stream = io.StringIO()
    ProgramPrinter(stream).print_program(module)
    return stream.getvalue()


def test_a_type_that_is_used_often_has_a_name_that_says_what_it_is() -> None:
    text = _printed(_read(PROGRAM))
    definition = "!f32_8d_16 = tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>"
    assert text.splitlines()[0] == definition
    assert text.count("tensor<8x16xf32") == 1
    assert "onnx.MatMul(%0, %w) : (!f32_8d_16, tensor<16x32xf32" in text


def test_what_is_written_is_read_back_and_written_alike() -> None:
    module = _read(PROGRAM)
    text = _printed(module)
    again = _read(text)
    assert module.is_structurally_equivalent(again)
    assert _printed(again) == text


def test_a_sequential_program_is_spelled_out() -> None:
    text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  func.return %x : tensor<4xf32>\n}"
    assert f"  {text.splitlines()[0]}\n" in _printed(_read(text))


def test_types_of_several_meshes_and_like_names_are_told_apart() -> None:
    """Two axes that make the same letters, and the same layout on two meshes."""
    types = [
        "tensor<8xf32, #dist.layout<@a, [{d, t}]>>",
        "tensor<8xf32, #dist.layout<@a, [{dt}]>>",
        "tensor<8xf32, #dist.layout<@b, [{dt}]>>",
        "tensor<8xf32, #dist.layout<@b, [{}], partial sum {dt}>>",
    ]
    body = "\n".join(
        f"func.func private @f{i}(%x: {t}, %y: {t}) -> {t} {{ func.return %x : {t} }}"
        for i, t in enumerate(types)
    )
    module = _read(body)
    text = _printed(module)
    names = [line.split(" = ")[0] for line in text.splitlines() if line[0] == "!"]
    assert names == [
        "!f32_8dt_a",
        "!f32_8dt_a_v2",
        "!f32_8dt_b",
        "!f32_8_sum_dt_b",
    ]
    assert module.is_structurally_equivalent(_read(text))


def test_numbers_of_names_make_no_name_of_another_value() -> None:
    """Two values with the hint `a` are `a` and `a_1`, which another one has as its hint."""
    names = ("a", "a", "a_1", "b_1", "b", "b", "b_1")
    module = _read(
        "func.func @main(%x: tensor<8xf32>) {\n"
        + "".join(
            f"%v{i} = onnx.Relu(%x) : (tensor<8xf32>) -> tensor<8xf32>\n"
            for i, _ in enumerate(names)
        )
        + "func.return\n}"
    )
    ops = [op for op in module.walk() if op.name == "onnx.Relu"]
    for op, name in zip(ops, names, strict=True):
        # xDSL cuts a number off the end of what is set.
        op.results[0].name_hint = f"{name}_7"
        assert op.results[0].name_hint == name
    target = io.StringIO()
    ProgramTarget().emit(new_context(), module, target)
    for text in (_printed(module), target.getvalue()):
        assert len(_read(text).body.block.ops) == 1
        shown = [line.split()[0] for line in text.splitlines() if "Relu" in line]
        assert shown == ["%a", "%a_1", "%a_1_1", "%b_1", "%b", "%b_2", "%b_1_1"]


@pytest.mark.parametrize(
    "line",
    [
        '%a = onnx.Add(%x, %x) {scope = "b"} : (T, T) -> T',
        '%a = onnx.Add(%y, %x) {scope = "b"} : (T, T) -> T',
        '%a = onnx.Add(%x, %y) {scope = "100 % of %s"} : (T, T) -> T',
        '%a = onnx.Add(%x, %y) {scope = "\\22\\00scope\\00"} : (T, T) -> T',
        '%a = onnx.Add(%x, %y) {n = "\\00scope\\00", scope = "b"} : (T, T) -> T',
        '%a = onnx.Add(%x, %y) {scope = "b", dist.bucket = 1 : i64} : (T, T) -> T',
        '%a = onnx.Add(%x, %y) {dist.bucket = 2 : i64, scope = "b"} : (T, T) -> T',
        '%a = onnx.Add(%x, %y) {n = {scope = "c"}, scope = "b"} : (T, T) -> T',
        "%a = func.call @f(%x, %y) : (T, T) -> T",
        '%a = func.call @g(%y, %x) {scope = "b"} : (T, T) -> T',
        '%a = onnx.Clip(%x, none, %z) {scope = "b"} : (T, U) -> T',
        '%a = onnx.Clip(%x, %z) {scope = "b"} : (T, U) -> T',
    ],
)
def test_ops_that_were_printed_before(line: str) -> None:
    """An op that is alike to another one is printed like any op."""
    text = f"""
      func.func private @f(%0: T, %"1": T) -> T {{
        func.return %0 : T
      }}
      func.func private @g(T, T {{n}}) -> T
      func.func @main(%x: T {{dist.name = "\\22", n}}, %y: T, %z: U) -> (T {{n = 1 : i64}}) {{
        %1 = onnx.Add(%x, %y) {{scope = "a"}} : (T, T) -> T
        %2 = func.call @f(%x, %y) : (T, T) -> T
        %3 = onnx.Clip(%x, none, %z) {{scope = "a"}} : (T, U) -> T
        {line}
        {line.replace("%a", "%a_1")}
        func.return %a : T
      }}""".replace("T", "tensor<4xf32>").replace("U", "tensor<f32>")
    _assert_same(_read(text.replace('%"1"', "%1")))


def test_a_scope_without_a_text() -> None:
    """It is no name of a module, so files cannot have it; the printer shows it."""
    module = _read(PROGRAM)
    for op in module.walk():
        if op.name == "onnx.Relu":
            op.attributes["scope"] = StringAttr("a")
            copy = op.clone()
            copy.attributes["scope"] = UnitAttr()
            assert op.parent is not None
            op.parent.insert_op_after(copy, op)
    _assert_same(module)
    assert "{scope} :" in _printed(module)


def test_every_lit_file_is_printed_alike() -> None:
    """They are many, so this is one test. `make test` prints every eighth one."""
    context = new_context()
    files = sorted((Path(__file__).parents[1] / "filecheck").rglob("*.mlir"))
    printed = 0
    for file in files[:: 1 if IS_THOROUGH else 8]:
        for part in file.read_text().split("// -----"):
            try:
                module = ProgramParser(context, part).parse_module()
            except (ParseError, VerifyException, DistIRError):
                continue
            _assert_same(module)
            printed += 1
    assert printed > 15
