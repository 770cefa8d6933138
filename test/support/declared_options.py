"""Finds the declarations of options in the source: of commands, passes and functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Declaration(NamedTuple):
    """
    A place that declares an option: `kind` is `option` for a field that `option` makes,
    `argument` for one of a parser, `pass`, `field` or `parameter` for a name with a default of
    its own in a pass, in another dataclass or in a function; `owner` is the class or function.
    """

    name: str
    kind: str
    path: str
    owner: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} in {self.path}:{self.owner}"


REFERENCES = ("same_option", "values_of")
"""The functions that refer to an option that is declared elsewhere."""


def declarations(
    path: str, tree: ast.Module, functions: frozenset[str] = frozenset()
) -> Iterator[Declaration]:
    """
    Yields the declarations of options in a module. Those of `functions` are the parameters
    that have to be named.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and _is_dataclass(node):
            yield from _fields(path, node)
        elif isinstance(node, ast.FunctionDef):
            if node.name in functions:
                for parameter in node.args.kwonlyargs:
                    yield Declaration(parameter.arg, "parameter", path, node.name)
            for call in _own_calls(node):
                if name := _argument(call):
                    yield Declaration(name, "argument", path, node.name)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(each) for each in node.decorator_list)


def _fields(path: str, node: ast.ClassDef) -> Iterator[Declaration]:
    """Yields the fields of a dataclass that have a default of their own."""
    is_pass = any(ast.unparse(base).endswith("Pass") for base in node.bases)
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or field.value is None:
            continue
        made = ast.unparse(field.value).partition("(")[0]
        if made not in REFERENCES:
            kind = "option" if made == "option" else "pass" if is_pass else "field"
            yield Declaration(ast.unparse(field.target), kind, path, node.name)


def _own_calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Yields the calls in a function, without those in functions inside."""
    inner = [
        n for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function
    ]  # fmt: skip
    skipped = {id(n) for each in inner for n in ast.walk(each)}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and id(node) not in skipped:
            yield node


def _argument(call: ast.Call) -> str:
    """
    Returns the option that a call of `add_argument` declares, as Python has it, "?" for one
    that is not written out, and "" for another call or an argument without a name.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
        return ""
    texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
    flags = [t for t in texts if isinstance(t, str) and t.startswith("-")]
    if len(flags) < len(call.args) and not texts:
        return "?"
    longest = max(flags, key=len, default="")
    return longest.lstrip("-").replace("-", "_")
