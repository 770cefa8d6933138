"""
The helper modules of generated packages, and the imports between them.

A helper module is a copy of a module of `distir.runtime`, which has one folder per
subject. A package has all helper modules in one folder, so their imports of each other
become `from .NAME import` in the copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

RUNTIME = "distir.runtime"
"""The package whose modules are copied into generated packages."""

_RELATIVE_IMPORT = re.compile(
    r"^[ \t]*from \.(?P<module>\w*) import (?P<names>[^#\n]*)", re.MULTILINE
)
"""An import in a helper module, as generated packages contain it."""

_SHARED = {"output_files": files("distir.system") / "output_files.py"}
"""
Helper modules whose text is that of a module elsewhere in DistIR, by name.
`distir.runtime` contains a stand-in for each.
"""


@cache
def _modules() -> dict[str, tuple[str, Traversable]]:
    """Returns, by name, the package and the file of each helper module."""
    root = files(RUNTIME)
    rooms = {RUNTIME: root} | {
        f"{RUNTIME}.{room.name}": room
        for room in root.iterdir()
        if (room / "__init__.py").is_file()
    }
    return {
        file.name.removesuffix(".py"): (package, file)
        for package, room in rooms.items()
        for file in room.iterdir()
        if file.name.endswith(".py") and file.name != "__init__.py"
    }


@cache
def helper_modules() -> frozenset[str]:
    """Returns the names of all helper modules of generated packages."""
    return frozenset(_modules())


def imported_as(name: str) -> str:
    """
    Returns the full name under which DistIR itself imports the helper module `name`.
    """
    package, _ = _modules()[name]
    return f"{package}.{name}"


@cache
def helper_text(name: str) -> str:
    """Returns the source text of the helper module `name` in generated packages."""
    if name in _SHARED:
        return _SHARED[name].read_text(encoding="utf-8")
    if name == "__init__":
        return (files(RUNTIME) / "__init__.py").read_text(encoding="utf-8")
    _, file = _modules()[name]
    return _in_one_folder(file.read_text(encoding="utf-8"))


def _in_one_folder(text: str) -> str:
    """
    Returns the text of a module of `distir.runtime` with its imports rewritten for a
    package, where all helper modules are in one folder. Each block of imports begins
    with one statement for whole modules; imports of names follow, in the order of
    isort.
    """
    lines = text.splitlines(keepends=True)
    for block in reversed(_import_blocks(text)):
        start, end = block[0].first, block[-1].end
        indent = block[0].indent
        modules: list[str] = []
        tail = "\n"
        others: dict[str, str] = {}
        for each in block:
            own = "".join(lines[each.first : each.end])
            module = each.source.rpartition(".")[2]
            if module in _modules():
                imported = own[own.index(" import ") :]
                others[module] = f"{indent}from .{module}{imported}"
            else:
                modules += each.names
                if "  #" in own:
                    tail = own[own.index("  #") :]
        if modules:
            others[""] = f"{indent}from . import {', '.join(sorted(modules))}{tail}"
        lines[start:end] = [others[module] for module in sorted(others)]
    return "".join(lines)


_STATEMENT = re.compile(
    r"^(?P<indent> *)from (?P<source>\.[\w.]*) import (?P<names>\([^)]*\)|[^\n]*)",
    re.MULTILINE,
)
"""
A relative import in a module of `distir.runtime`. Parsing the modules to find the
imports would take a tenth of the time that it takes to write a package.
"""

_COMMENT = re.compile(r"#[^\n]*")


class _Import(NamedTuple):
    """
    A relative import: its lines `first` to `end - 1`, their indentation, the module
    from which it imports, and the imported names.
    """

    first: int
    end: int
    indent: str
    source: str
    names: list[str]


def _import_blocks(text: str) -> list[list[_Import]]:
    """
    Returns the relative imports in the text of a module, grouped into blocks of
    consecutive lines.
    """
    found: list[list[_Import]] = []
    for match in _STATEMENT.finditer(text):
        first = text.count("\n", 0, match.start())
        end = first + 1 + match.group().count("\n")
        names = re.findall(r"\w+", _COMMENT.sub("", match["names"]))
        each = _Import(first, end, match["indent"], match["source"], names)
        if found and found[-1][-1].end == first:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def with_imports(names: Iterable[str]) -> set[str]:
    """
    Returns the helper modules in `names`, and all helper modules that they import,
    directly or indirectly.
    """
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
    """Returns the helper modules that the helper module `name` imports directly."""
    found: set[str] = set()
    for statement in _RELATIVE_IMPORT.finditer(helper_text(name)):
        # `from . import a, b` or `from .a import f`.
        module = statement["module"]
        found |= {module} if module else set(re.findall(r"\w+", statement["names"]))
    return frozenset(found & helper_modules())
