"""The helper modules of generated packages, and which of them import which."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

TEMPLATE = files("distir.lowering.template")
"""The folder from which helper modules are copied."""

_SHARED = {"output_files": files("distir.system") / "output_files.py"}
"""Helper modules that are modules of DistIR itself; the folder has what stands for them."""


@cache
def helper_modules() -> frozenset[str]:
    """Returns the names of all helper modules of generated packages."""
    return frozenset(
        file.name.removesuffix(".py")
        for file in TEMPLATE.iterdir()
        if file.name.endswith(".py") and file.name != "__init__.py"
    )


@cache
def helper_text(name: str) -> str:
    """Returns the source text of the helper module of that name."""
    file = _SHARED.get(name, TEMPLATE / f"{name}.py")
    return file.read_text(encoding="utf-8")


def with_imports(names: Iterable[str]) -> set[str]:
    """Returns these modules and all that they import, directly or not."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _imports(name)
    return found


@cache
def _imports(name: str) -> frozenset[str]:
    """Returns the helper modules that the one of that name imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(helper_text(name))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            # `from . import a, b` or `from .a import f`.
            found |= {node.module} if node.module else {a.name for a in node.names}
    return frozenset(found & helper_modules())
