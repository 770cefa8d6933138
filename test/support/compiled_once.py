"""
Compiles each Python text once in a process: the packages that tests write have the files of
`distir/runtime`, each package at a path of its own.
"""

from __future__ import annotations

import marshal
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any


def compile_texts_once() -> None:
    """Lets imports, and `compileall`, in this process and those that it forks do so."""
    compiled = dict[bytes, bytes]()
    original = SourceFileLoader.source_to_code

    def source_to_code(
        loader: SourceFileLoader, data: Any, path: Any, **options: Any
    ) -> CodeType:
        if not isinstance(data, bytes) or options.get("_optimize", -1) != -1:
            return original(loader, data, path, **options)
        if data not in compiled:
            code = original(loader, data, path, **options)
            compiled[data] = marshal.dumps(code)
            return code
        return _at(str(path), marshal.loads(compiled[data]))

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign]


def _at(path: str, code: CodeType) -> CodeType:
    """Returns code with the path of another file of the same text."""
    parts = (_at(path, c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(parts))
