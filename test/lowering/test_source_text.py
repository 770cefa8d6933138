"""Long lines of generated Python are broken where they may be."""

from __future__ import annotations

import ast

import pytest

from distir.lowering.source.text import WIDTH, broken

LINES = (
    "y = call(" + ", ".join(f"operand_{i}[{i}, :], (1, {i})" for i in range(8)) + ")",
    f"table = [{', '.join(repr(text * 7) for text in ('a, (b', '], ', '{,'))}, x, (y, z)]",
    r"""y = call("say \"(, [\", or so", 'it\'s, (', "\\", x[1, 2], {"a": (1, 2), "b, c": [3, 4]}, z=(5, 6))""",
)


@pytest.mark.parametrize("line", LINES)
def test_broken_lines_say_the_same(line: str) -> None:
    assert len(line) > WIDTH
    rows = broken(line)
    assert len(rows) > 2 and max(map(len, rows)) <= WIDTH
    assert ast.dump(ast.parse("\n".join(rows))) == ast.dump(ast.parse(line))


def test_strings_are_not_broken() -> None:
    line = f"y = call({'a, (b), ' * 12!r})"
    assert len(line) > WIDTH and broken(line) == [line]
