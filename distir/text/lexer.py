"""xDSL's lexer, made faster, and made robust against malformed text."""

from __future__ import annotations

import re
from typing import ClassVar

from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Position, Span, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind

LONGEST_NUMBER = 1000
"""
The most characters of a number. Python refuses to read integers of more than 4300
digits.
"""

_PUNCTUATION = {c: MLIRTokenKind(c) for c in (*":,()}[]<>=+/*?|", "{", "->")}

_COMMON = re.compile(
    r"(?:\s++|//[^\n]*+)*+"
    r"(?:([:,()}\[\]<>=+/*?|]|\{(?!-#)|->)"
    r"|(%(?:[0-9]++|[a-zA-Z$._-][a-zA-Z0-9$._-]*+))"
    r"|([a-zA-Z_][a-zA-Z0-9_$.]*+)"
    r"|(![a-zA-Z$._-][a-zA-Z0-9$._-]*+)"
    r"|([1-9][0-9]{0,18}+)(?![0-9.]))",
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
    xDSL's lexer, with four differences:

    - one regular expression finds nearly all tokens of a program: punctuation, names of
      values and types, bare identifiers and integers;
    - a string without an end is refused in linear time, while xDSL's pattern takes
      exponential time;
    - a string whose escaped bytes are UTF-8 is text, because xDSL prints letters
      outside of ASCII in this way;
    - numbers have ASCII digits, and at most `LONGEST_NUMBER` characters.
    """

    _unescaped_characters_regex: ClassVar[re.Pattern[str]] = re.compile(
        r'"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"'
    )

    def lex(self) -> MLIRToken:
        """Returns the next token, and moves to the position after it."""
        content = self.input.content
        match = _COMMON.match(content, self.pos)
        if match is None:
            return super().lex()
        group = match.lastindex
        assert group is not None
        start, self.pos = match.span(group)
        kind = _KINDS.get(group) or _PUNCTUATION[match.group(1)]
        return Token(kind, Span(start, self.pos, self.input))

    def _lex_string_literal(self, start_pos: Position) -> MLIRToken:
        token = super()._lex_string_literal(start_pos)
        if token.kind is MLIRTokenKind.BYTES_LIT:
            try:
                # The span of a string is a StringLiteral.
                getattr(token.span, "bytes_contents", b"").decode()
            except UnicodeDecodeError:
                return token
            return Token(MLIRTokenKind.STRING_LIT, token.span)
        return token

    def _lex_number(self, start_pos: Position) -> MLIRToken:
        if not self.input.content[start_pos].isascii():
            span = Span(start_pos, start_pos + 1, self.input)
            raise ParseError(span, f"Unexpected character: {span.text}")
        token = super()._lex_number(start_pos)
        if len(token.text) > LONGEST_NUMBER:
            raise ParseError(
                token.span, f"a number has more than {LONGEST_NUMBER} digits"
            )
        return token
