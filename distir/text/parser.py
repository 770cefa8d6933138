"""A parser for `.mlir` text that is quick where programs are long."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from xdsl.context import Context
from xdsl.ir import Attribute, TypeAttribute
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from distir.text.lexer import ProgramLexer

_AnyT = TypeVar("_AnyT")

_TENSOR = r'tensor<[^<>"]*+(?:<[^<>"]*+>)?+>'
_TYPE = rf"(?:{_TENSOR}|![a-zA-Z_][a-zA-Z0-9_$]*+(?![.<]))"
_ONE_TENSOR = re.compile(_TENSOR)
_TYPES = re.compile(rf"{_TYPE}(?:,\s*+{_TYPE})*+(?!\s*,)")
_TYPES_IN_PARENTHESES = re.compile(rf"\({_TYPE}(?:,\s*+{_TYPE})*+\)")

_DICTIONARY = re.compile(r'\{(?!-#)[^{}"\n]*+(?:"[^"\\\n]*+"[^{}"\n]*+)*+\}')

_VALUE = r"%(?:[0-9]++|[a-zA-Z$._-][a-zA-Z0-9$._-]*+)"
_ONE_VALUE = re.compile(_VALUE)
_VALUES = re.compile(rf"{_VALUE}(?:,\s*+{_VALUE})*+(?!\s*[,#:])")


class ProgramParser(Parser):
    """
    xDSL's parser, with a memory: a distributed program of many layers and stages repeats
    some hundred types, lists of types and attribute dictionaries some hundred thousand
    times. What has been read before is recognised by its text, and a list of values is split
    at its commas. Anything else is left to xDSL, so that what is accepted, and what errors
    say, stays the same.
    """

    def __init__(self, ctx: Context, input: str, name: str = "<unknown>"):
        super().__init__(ctx, input, name)
        self._parser_state = ParserState(ProgramLexer(Input(input, name)))
        self._content = input
        self._known_types: dict[str, TypeAttribute] = {}
        self._known_lists: dict[str, list[Any]] = {}
        self._known_dictionaries: dict[str, dict[str, Attribute]] = {}

    def parse_optional_type(self) -> TypeAttribute | None:
        """A type, if there is one."""
        token = self._current_token
        if token.kind is not MLIRTokenKind.BARE_IDENT:
            return super().parse_optional_type()
        match = _ONE_TENSOR.match(self._content, token.span.start)
        if match is None:
            return super().parse_optional_type()
        text = match.group()
        known = self._known_types.get(text)
        if known is not None:
            self._resume_from(match.end())
            return known
        found = super().parse_optional_type()
        if found is not None:
            self._known_types[text] = found
        return found

    def parse_optional_dictionary_attr_dict(self) -> dict[str, Attribute]:
        """The attributes in braces; none if there are no braces."""
        match = _DICTIONARY.match(self._content, self.pos)
        if match is None or "dense_resource" in match.group():
            return super().parse_optional_dictionary_attr_dict()
        text = match.group()
        if text in self._known_dictionaries:
            self._resume_from(match.end())
        else:
            found = super().parse_optional_dictionary_attr_dict()
            self._known_dictionaries[text] = dict(found)
        return dict(self._known_dictionaries[text])

    def parse_list(
        self,
        delimiter: Parser.Delimiter,
        parse: Callable[[], _AnyT],
        separator: str = ",",
        context_msg: str = "",
    ) -> list[_AnyT]:
        """The elements of a list, as many as there are."""
        quick: list[Any] | None = None
        if parse == self.parse_type:
            if delimiter is self.Delimiter.NONE:
                return self._types(_TYPES, delimiter, parse)
            if delimiter is self.Delimiter.PAREN:
                return self._types(_TYPES_IN_PARENTHESES, delimiter, parse)
        elif delimiter is self.Delimiter.NONE:
            if parse == self.parse_unresolved_operand:
                quick = self._values(lambda span: UnresolvedOperand(span, 0))
            elif parse == self._parse_op_result:
                quick = self._values(lambda span: (span, 1))
        if quick is not None:
            return quick
        return super().parse_list(delimiter, parse, separator, context_msg)

    def _types(
        self,
        pattern: re.Pattern[str],
        delimiter: Parser.Delimiter,
        parse: Callable[[], _AnyT],
    ) -> list[_AnyT]:
        match = pattern.match(self._content, self.pos)
        if match is None:
            return super().parse_list(delimiter, parse)
        text = match.group()
        if text in self._known_lists:
            self._resume_from(match.end())
        else:
            self._known_lists[text] = super().parse_list(delimiter, parse)
        return list(self._known_lists[text])

    def _values(self, made_of: Callable[[Span], _AnyT]) -> list[_AnyT] | None:
        """The values of a list without the number of one in a tuple (`%0#1`, `%0:2`)."""
        match = _VALUES.match(self._content, self.pos)
        if match is None:
            return None
        source = self.lexer.input
        start, end = match.span()
        found = [
            made_of(Span(*value.span(), source))
            for value in _ONE_VALUE.finditer(self._content, start, end)
        ]
        self._resume_from(end)
        return found
