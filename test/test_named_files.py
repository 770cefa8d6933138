"""Files and classes that documentation and docstrings name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from support.sources import nodes, sources

ROOT = Path(__file__).parents[1]

ELSEWHERE = {
    "passes/my_pass.py": "a user's, in an example",
    "before.py": "a reader's, in a tutorial",
    "after.py": "a reader's, in a tutorial",
    "_runtime_utils.py": "PyTorch's",
    "main.py": "in generated packages",
    "program.py": "in generated packages",
    "tables.py": "in generated packages",
    "PreTrainedModel": "a class of transformers",
    "LinearLR": "a class of PyTorch",
    "CosineAnnealingLR": "a class of PyTorch",
}
"""Names of what is not in this repository, and whose they are."""

_FILE = re.compile(r"`([\w./-]+\.py)`")
_CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z]\w*)?)`")


def missing_files(text: str, files: set[str]) -> set[str]:
    """The files in a text that are no ends of these paths."""
    named = set(_FILE.findall(text)) - ELSEWHERE.keys()
    return {n for n in named if not any(f"/{path}".endswith(f"/{n}") for path in files)}


def names(tree: ast.AST) -> Iterator[str]:
    """The names that code uses, in texts too, except for docstrings."""
    for node in nodes(tree):
        match node:
            case ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.alias(name=name):
                yield from (node.asname or name).split(".")
            case ast.Constant(value=str(text)) if "`" not in text:
                yield from re.findall(r"\w+", text)
            case _:
                pass


def docstrings(tree: ast.AST) -> Iterator[str]:
    """The texts that stand alone in code: docstrings, also those of attributes."""
    for node in nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case _:
                pass


def missing_classes(texts: list[str], known: set[str]) -> set[str]:
    """The classes in texts that code does not know."""
    named = {name for text in texts for name in _CLASS.findall(text)}
    return named - known - ELSEWHERE.keys()


@pytest.fixture(scope="module")
def files() -> set[str]:
    folders = ("distir", "test", "bench", "examples", "docs", "website")
    found = (p for folder in folders for p in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_named_files_are_there(files: set[str]) -> None:
    texts = [text for tree in sources().values() for text in docstrings(tree)]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for text in (*texts, *(page.read_text() for page in pages)):
        assert missing_files(text, files) == set()


def test_named_classes_are_there() -> None:
    known = {name for tree in sources().values() for name in names(tree)}
    known |= {schema.name for schema in onnx.defs.get_all_schemas()}
    texts = [text for tree in sources().values() for text in docstrings(tree)]
    assert missing_classes(texts, known) == set()


def test_what_is_not_there_is_seen(files: set[str]) -> None:
    assert missing_files("`planning/layouts/over_time.py`", files)
    assert not missing_files(
        "`pipelines/over_time.py` and `test_named_files.py`", files
    )
    assert missing_classes(["See `Body`, `NoSuch`"], {"Body"}) == {"NoSuch"}
