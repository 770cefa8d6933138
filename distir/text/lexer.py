"""A lexer for MLIR that finds the common tokens with one regular expression."""

from __future__ import annotations

import re

from xdsl.utils.lexer import Span, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind

_PUNCTUATION = {c: MLIRTokenKind(c) for c in (*":,()}[]<>=+/*?|", "{", "->")}

_COMMON = re.compile(
    r"(?:\s++|//[^\n]*+)*+"
    r"(?:([:,()}\[\]<>=+/*?|]|\{(?!-#)|->)"
    r"|(%(?:[0-9]++|[a-zA-Z$._-][a-zA-Z0-9$._-]*+))"
    r"|([a-zA-Z_][a-zA-Z0-9_$.]*+)"
    r"|(![a-zA-Z_][a-zA-Z0-9_$.]*+)"
    r"|([1-9][0-9]*+)(?!\.))",
    re.ASCII,
)

_KINDS = {
    2: MLIRTokenKind.PERCENT_IDENT,
    3: MLIRTokenKind.BARE_IDENT,
    4: MLIRTokenKind.EXCLAMATION_IDENT,
    5: MLIRTokenKind.INTEGER_LIT,
}


class ProgramLexer(MLIRLexer):
    """
    xDSL's lexer, with a short cut for punctuation, names of values and types, bare
    identifiers and whole numbers: nearly all tokens of a program. Everything else, errors
    included, is xDSL's.
    """

    def lex(self) -> MLIRToken:
        """The next token."""
        content = self.input.content
        match = _COMMON.match(content, self.pos)
        if match is None:
            return super().lex()
        group = match.lastindex
        assert group is not None
        start, self.pos = match.span(group)
        kind = _KINDS.get(group) or _PUNCTUATION[match.group(1)]
        return Token(kind, Span(start, self.pos, self.input))
