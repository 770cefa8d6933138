"""Strings from the IR change neither what generated Python does nor where files go."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.lowering_cases import run_here
from support.programs import parse
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    TensorType,
)
from xdsl.ir import Attribute
from xdsl.rewriter import Rewriter

from distir.dialects.dist import LayoutAttr
from distir.launch.packages import Spawner, run_package
from distir.lowering.program_source import program_source
from distir.lowering.source.text import Names, comment, sanitized
from distir.lowering.torch_package import write_package
from distir.program import argument_names, entry_function, result_names

TRIPWIRE = "DISTIR_TRIPWIRE"
EVIL = f"__import__('pathlib').Path('{TRIPWIRE}').touch()"

NAMES = [
    f"x'); {EVIL}; ('",
    f'x"""\n{EVIL}\n"""',
    f"a\n    {EVIL}",
    f"b\r{EVIL}",
    f"c\x0b\x0c\x85{EVIL}",
    f"d\u2028{EVIL}\u2029",
    f"e\\\n{EVIL}",
    "../../escape",
    "/etc/passwd",
    "self",
    "torch",
    "F",
    "collectives",
    "lambda",
    "__class__",
    "print",
    "",
    "1",
    "\u0430\u0501",
    "\ud7ff\x00\x1b[2J",
    "{0}",
    "%s",
]


def renamed(attribute: Attribute, names: dict[str, str]) -> Attribute:
    """The attribute with other strings and symbols in it."""
    match attribute:
        case StringAttr():
            return StringAttr(names.get(attribute.data, attribute.data))
        case SymbolRefAttr():
            text = attribute.string_value()
            return SymbolRefAttr(names.get(text, text))
        case LayoutAttr():
            mesh = attribute.data.mesh
            return LayoutAttr(replace(attribute.data, mesh=names.get(mesh, mesh)))
        case TensorType():
            encoding = renamed(attribute.encoding, names)
            return TensorType(attribute.element_type, attribute.shape.data, encoding)
        case FunctionType():
            return FunctionType.from_lists(
                [renamed(t, names) for t in attribute.inputs],
                [renamed(t, names) for t in attribute.outputs],
            )
        case ArrayAttr():
            return ArrayAttr([renamed(a, names) for a in attribute.data])
        case DictionaryAttr():
            return DictionaryAttr(
                {k: renamed(a, names) for k, a in attribute.data.items()}
            )
        case _:
            return attribute


def rename(module: ModuleOp, names: dict[str, str]) -> ModuleOp:
    """The module with other names, also such as its text could not hold."""
    for op in module.walk():
        for attributes in (op.attributes, op.properties):
            for key, attribute in attributes.items():
                attributes[key] = renamed(attribute, names)
        values = [
            *op.results,
            *(a for r in op.regions for b in r.blocks for a in b.args),
        ]
        for value in values:
            Rewriter.replace_value_with_new_type(value, renamed(value.type, names))
    return module


def program(names: list[str]) -> ModuleOp:
    """A sequential program that has these names wherever a name can be."""
    count = range(len(names))
    arguments = ", ".join(
        f'%x{i}: tensor<2x2xf32> {{dist.name = "name{i}"}}' for i in count
    )
    results = ", ".join(f'tensor<2x2xf32> {{dist.name = "name{i}"}}' for i in count)
    body = "\n".join(
        f"%y{i} = func.call @function{i}(%x{i}) : (tensor<2x2xf32>) -> tensor<2x2xf32>"
        for i in count
    )
    functions = "\n".join(
        f"""func.func @function{i}(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {{
  %c = onnx.Constant() {{value = dense<1.0> : tensor<2x2xf32>, scope = "name{i}"}} : () -> tensor<2x2xf32>
  %y = onnx.Add(%x, %c) {{scope = "name{i}"}} : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  func.return %y : tensor<2x2xf32>
}}"""
        for i in count
    )
    values = ", ".join(f"%y{i}" for i in count)
    types = ", ".join(["tensor<2x2xf32>" for _ in count])
    module = parse(
        f"{functions}\nfunc.func @main({arguments}) -> ({results}) {{\n{body}\n"
        f"func.return {values} : {types}\n}}"
    )
    new = {f"name{i}": n for i, n in enumerate(names)}
    return rename(module, new | {f"function{i}": f"f{n}" for i, n in enumerate(names)})


def test_names_mean_nothing(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = program(NAMES)
    names = argument_names(entry_function(module))
    assert names == [n or "x16" for n in NAMES]
    directory = tmp_path / "package"
    write_package(module, directory)
    written = {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*")}
    assert written == {"package"}
    arrays = {n: np.full((2, 2), i, np.float32) for i, n in enumerate(names)}
    results = run_package(directory, inputs=arrays, timeout_s=60, spawner=spawner)
    assert list(results) and set(results) == set(result_names(entry_function(module)))
    for i, name in enumerate(result_names(entry_function(module))):
        np.testing.assert_array_equal(results[name], np.full((2, 2), i + 1))
    assert not list(tmp_path.rglob(f"*{TRIPWIRE}*"))
    assert json.loads((directory / "manifest.json").read_text())["results"]


def test_only_known_shapes_of_code() -> None:
    """The generated syntax tree has the same shape whatever the names are."""

    def shape(names: list[str]) -> list[str]:
        tree = ast.parse(program_source(program(names)).text)
        return [type(node).__name__ for node in ast.walk(tree)]

    harmless = [f"name{i}" for i in range(len(NAMES))]
    assert shape(NAMES) == shape(harmless)


def test_mesh_and_axis_names(tmp_path: Path, spawner: Spawner) -> None:
    module = parse(
        """
        device.mesh @mesh on @box <t = 2> [0 to 2]
        func.func @main(%x: tensor<4x2xf32, #dist.layout<@mesh, [{t}, {}]>>) -> tensor<4x2xf32, #dist.layout<@mesh>> {
          %y = collective.all_gather %x over [t] : tensor<4x2xf32, #dist.layout<@mesh, [{t}, {}]>> -> tensor<4x2xf32, #dist.layout<@mesh>>
          func.return %y : tensor<4x2xf32, #dist.layout<@mesh>>
        }"""
    )
    rename(module, {"mesh": f"m'\n{EVIL}"})
    write_package(module, tmp_path)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    results = run_package(tmp_path, inputs={"x": x}, timeout_s=60, spawner=spawner)
    np.testing.assert_array_equal(results["output0"], x)
    assert not list(Path.cwd().glob(TRIPWIRE))


@pytest.mark.parametrize("name", NAMES)
def test_identifiers_and_comments(name: str) -> None:
    made = Names(("torch",)).fresh(name, "x")
    assert made.isidentifier() and made.isascii() and not made.startswith("_")
    assert made not in ("torch", "self", "lambda", "print")
    assert sanitized(name) == "" or sanitized(name).isidentifier()
    assert len(comment(name).splitlines()) <= 1 and comment(name).isascii()


def test_identifiers_differ() -> None:
    names = Names()
    assert (
        len({names.fresh("a.b", "x"), names.fresh("a_b", "x"), names.fresh("a b", "x")})
        == 3
    )


def test_functions_that_return_their_argument() -> None:
    """Without names: what the argument is depends on the call that is followed."""
    module = parse("""
func.func @main(%a: tensor<2xf32> {dist.role = "input", dist.name = "a"}) -> tensor<2xf32> {
  %1 = func.call @outer(%a) : (tensor<2xf32>) -> tensor<2xf32>
  %2 = func.call @same(%1) : (tensor<2xf32>) -> tensor<2xf32>
  func.return %2 : tensor<2xf32>
}
func.func @outer(%0: tensor<2xf32>) -> tensor<2xf32> {
  %1 = func.call @same(%0) : (tensor<2xf32>) -> tensor<2xf32>
  func.return %1 : tensor<2xf32>
}
func.func @same(%0: tensor<2xf32>) -> tensor<2xf32> {
  func.return %0 : tensor<2xf32>
}
""")
    (values,) = run_here(module, [np.array([1, 2], np.float32)])
    assert values.tolist() == [1, 2]
