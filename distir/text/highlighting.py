"""
The colours of `.mlir` text: a lexer for Pygments, which an entry point of the package
names, and a grammar for editors that read TextMate grammars (`editors/vscode`). One
table defines both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pygments.lexer import RegexLexer
from pygments.token import (
    Comment,
    Keyword,
    Literal,
    Name,
    Number,
    Operator,
    Punctuation,
    String,
    Text,
    Whitespace,
)

RULES: tuple[tuple[str, Any, str | None], ...] = (
    (r"\s+", Whitespace, None),
    (r"//[^\n]*", Comment.Single, "comment.line.double-slash.mlir"),
    (r'"(?:[^"\\\n]|\\.)*"', String.Double, "string.quoted.double.mlir"),
    (r"%[\w$.-]+(?::\d+)?(?:#\d+)?", Name.Variable, "variable.other.mlir"),
    (r'@(?:[\w$.-]+|"[^"\n]*")', Name.Function, "entity.name.function.mlir"),
    (r"\^[\w$.-]*", Name.Label, "entity.name.label.mlir"),
    (r"#[A-Za-z_][\w$.-]*", Name.Decorator, "entity.other.attribute-name.mlir"),
    (r"![A-Za-z_][\w$.-]*", Keyword.Type, "support.type.mlir"),
    (
        r"(?:\b|(?<=x))(?:tensor|memref|vector|index|none|complex|tuple"
        r"|[su]?i\d+|bf16|tf32|f\d+\w*)(?=[<>,) :]|$)",
        Keyword.Type,
        "support.type.mlir",
    ),
    (r"\b(?:true|false|unit|dense|loc)\b", Keyword.Constant, "constant.language.mlir"),
    (
        r"\b(?:over|partial|sum|max|min|on|spans|private|public|to)\b",
        Keyword,
        "keyword.other.mlir",
    ),
    (r"\b[A-Za-z_]\w*(?:\.\w+)+", Name.Builtin, "keyword.control.mlir"),
    (r"-?\d+\.\d*(?:[eE][-+]?\d+)?", Number.Float, "constant.numeric.mlir"),
    (r"0x[0-9A-Fa-f]+", Number.Hex, "constant.numeric.mlir"),
    (r"(?:[\d?]+x)+(?=[A-Za-z!])", Literal.Number, "constant.numeric.mlir"),
    (r"-?\d+", Number.Integer, "constant.numeric.mlir"),
    (r"->|[=+*?]", Operator, "keyword.operator.mlir"),
    (r"[()\[\]{}<>,:|]", Punctuation, None),
    (r"[\w$]+", Name, None),
    (r".", Text, None),
)
"""
Patterns in the order in which they are tried, with the token of Pygments and the scope of
TextMate; None where editors need no colour.
"""


class MlirLexer(RegexLexer):
    """The lexer of MLIR's text, with the words of DistIR's dialects."""

    name = "MLIR"
    aliases: ClassVar[Sequence[str]] = ["mlir"]
    filenames: ClassVar[Sequence[str]] = ["*.mlir"]
    url = "https://mlir.llvm.org"
    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [(pattern, token) for pattern, token, _ in RULES]
    }


def textmate_grammar() -> dict[str, Any]:
    """
    Returns the grammar for editors, in the form of the JSON file in `editors/vscode`.
    """
    return {
        "name": "MLIR",
        "scopeName": "source.mlir",
        "patterns": [
            {"match": pattern, "name": scope} for pattern, _, scope in RULES if scope
        ],
    }
