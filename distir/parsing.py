"""Programs as text: xDSL's parser, made fit for text that people and other tools write."""

from __future__ import annotations

import re
from math import prod
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.universe import Universe
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.utils.lexer import Input, Position, Span, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind

from distir.dominance import check_dominance

LONGEST_NUMBER = 1000
"""Letters of a number; Python refuses to read whole numbers of more than 4300 digits."""

LARGEST_CONSTANT = 1 << 28
"""Bytes of a constant in a program; xDSL holds every element of one, equal or not."""


def new_context() -> Context:
    """A context with every dialect of this environment, those of plugins included."""
    context = Context()
    for name, factory in Universe.get_multiverse().all_dialects.items():
        context.register_dialect(name, factory)
    return context


class _Lexer(MLIRLexer):
    """
    xDSL's lexer, but for three things: a string that does not end is refused in linear
    time, where xDSL's pattern tries exponentially many ways to match it; a string with
    escaped bytes that are UTF-8 is text (this is how xDSL prints letters outside of
    ASCII); numbers have digits of ASCII, and not more than Python reads.
    """

    _unescaped_characters_regex: ClassVar[re.Pattern[str]] = re.compile(
        r'"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"'
    )

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


class ProgramParser(Parser):
    """
    xDSL's parser of MLIR's text, for programs of DistIR. Text that is no program, whatever
    it is, raises ParseError or VerifyException; a program whose values are used before
    they are defined raises DistIRError. See `_Lexer` for what else it makes up for.
    """

    def __init__(self, ctx: Context, text: str, name: str = "<unknown>"):
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        try:
            module = super().parse_module(allow_implicit_module)
        except (DiagnosticException, ParseError, MemoryError):
            raise
        except RecursionError:
            self.raise_error("this is nested too deep to be read")
        except Exception as error:
            # xDSL's parser, and constructors of attributes, raise whatever Python does
            # for some text: ValueError, AssertionError, NotImplementedError, ...
            self.raise_error(f"cannot be read ({error or type(error).__name__})")
        check_dominance(module)
        return module

    def parse_dense_int_or_fp_elements_attr(
        self, type: Any
    ) -> DenseIntOrFPElementsAttr[Any]:
        """A constant; of one value for all elements, that value alone is converted."""
        start = self.pos
        self.parse_punctuation("<", " in dense attribute")
        splat = self._current_token.kind not in (
            MLIRTokenKind.GREATER,
            MLIRTokenKind.L_SQUARE,
            MLIRTokenKind.STRING_LIT,
        )
        if not splat:
            self._resume_from(start)
            return super().parse_dense_int_or_fp_elements_attr(type)
        (element,), _ = self._parse_tensor_literal()
        self.parse_punctuation(">", " in dense attribute")
        if type is None:
            self.parse_punctuation(":", " in dense attribute")
            type = self._parse_dense_literal_type()
        value: Any = element.to_type(self, type.element_type)
        return DenseIntOrFPElementsAttr.from_list(type, [value])

    def _parse_dense_literal_type(self) -> Any:
        type_ = super()._parse_dense_literal_type()
        size = prod(type_.get_shape()) * type_.element_type.compile_time_size
        if size > LARGEST_CONSTANT:
            self.raise_error(
                f"a constant of {size} bytes; at most {LARGEST_CONSTANT} can be in a "
                f"program, make a parameter of it"
            )
        return type_
