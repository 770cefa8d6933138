"""The colours of `.mlir` text."""

from __future__ import annotations

import json
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pygments.token import Comment, Keyword, Name, Number, String, Text

from distir.text.highlighting import MlirLexer, textmate_grammar

ROOT = Path(__file__).parents[2]

LINE = (
    '  %0 = collective.all_reduce %y over [t] {scope = "h.0"} : '
    "(tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}], partial sum {t}>>) -> !alias // sum\n"
)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("%0", Name.Variable),
        ("collective.all_reduce", Name.Builtin),
        ("over", Keyword),
        ('"h.0"', String.Double),
        ("tensor", Keyword.Type),
        ("8x16x", Number),
        ("f32", Keyword.Type),
        ("#dist.layout", Name.Decorator),
        ("@mesh", Name.Function),
        ("partial", Keyword),
        ("!alias", Keyword.Type),
        ("// sum", Comment.Single),
    ],
)
def test_tokens(text: str, token: object) -> None:
    found = [kind for kind, value in MlirLexer().get_tokens(LINE) if value == text]
    assert found == [token]


def test_nothing_is_lost_or_unknown() -> None:
    """Of all programs of the tests: only marks that are in no rule are plain text."""
    files = sorted((ROOT / "test" / "filecheck").rglob("*.mlir"))
    assert len(files) > 200
    for file in files[::20]:
        text = file.read_text()
        tokens = list(MlirLexer(stripnl=False, ensurenl=False).get_tokens(text))
        assert "".join(value for _, value in tokens) == text
        odd = {value for kind, value in tokens if kind is Text}
        assert odd <= set("/%&'-.;`\\~$@#!^"), (file, odd)


def test_it_is_installed_with_the_package() -> None:
    (entry,) = entry_points(group="pygments.lexers", name="mlir")
    assert entry.value == "distir.text.highlighting:MlirLexer"


def test_editors_have_the_same_rules() -> None:
    grammar = ROOT / "editors" / "vscode" / "syntaxes" / "mlir.tmLanguage.json"
    assert json.loads(grammar.read_text()) == textmate_grammar()
    package = json.loads((ROOT / "editors" / "vscode" / "package.json").read_text())
    for contribution in package["contributes"]["grammars"]:
        assert (ROOT / "editors" / "vscode" / contribution["path"]).is_file()
    for pattern in textmate_grammar()["patterns"]:
        re.compile(pattern["match"])
