"""The code of DistIR, as tests of the code itself read it."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import distir

FOLDER = Path(distir.__file__).parent


@functools.cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Returns all nodes of a syntax tree, which takes long to walk."""
    return list(ast.walk(tree))


@functools.cache
def sources() -> dict[str, ast.Module]:
    """Returns the syntax trees of the package, by path. Do not change them."""
    paths = sorted(FOLDER.rglob("*.py"))
    return {p.relative_to(FOLDER).as_posix(): ast.parse(p.read_text()) for p in paths}
