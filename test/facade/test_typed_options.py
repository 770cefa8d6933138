"""The options of Python functions are those of the commands, and have their types."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from support.typed_options import TABLES, tables

import distir
from distir.tools.arguments import typed_options

WRITTEN = ast.parse(Path(typed_options.__file__).read_text())


@pytest.mark.parametrize("name", TABLES)
def test_options_are_those_of_the_command(name: str) -> None:
    (table,) = (
        n for n in WRITTEN.body if isinstance(n, ast.ClassDef) and n.name == name
    )
    found = {
        ast.unparse(n.target): ast.dump(n.annotation)
        for n in table.body
        if isinstance(n, ast.AnnAssign)
    }
    expected = {
        option: ast.dump(ast.parse(f"({type_})", mode="eval").body)
        for option, type_ in tables()[name].items()
    }
    assert found == expected, "python -m support.typed_options writes the file again"


@pytest.mark.parametrize(
    "name",
    [n for n in distir._NAMES if n[0].islower()],  # pyright: ignore[reportPrivateUsage]
)
def test_functions_have_typed_options(name: str) -> None:
    for parameter in inspect.signature(getattr(distir, name)).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            assert str(parameter.annotation).startswith("Unpack["), parameter
        else:
            assert parameter.annotation is not inspect.Parameter.empty, parameter
