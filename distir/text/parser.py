"""A parser for `.mlir` text that is quick where programs are long."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp
from xdsl.ir import Attribute, TypeAttribute
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.parser.generic_parser import ParserState
from xdsl.universe import Universe
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from distir.dominance import check_dominance
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


LARGEST_CONSTANT = 1 << 28
"""Bytes of a constant in a program; xDSL holds every element of one, equal or not."""


def new_context() -> Context:
    """A context with every dialect of this environment, those of plugins included."""
    context = Context()
    for name, factory in Universe.get_multiverse().all_dialects.items():
        context.register_dialect(name, factory)
    return context


class ProgramParser(Parser):
    """
    xDSL's parser of MLIR's text, for programs of DistIR. Text that is no program, whatever
    it is, raises ParseError or VerifyException; a program whose values are used before
    they are defined raises DistIRError.

    It has a memory: a distributed program of many layers and stages repeats
    some hundred types, lists of types and attribute dictionaries some hundred thousand
    times. What has been read before is recognised by its text, and a list of values is split
    at its commas. Anything else is left to xDSL, so that what is accepted, and what errors
    say, stays the same.
    """

    def __init__(self, ctx: Context, text: str, name: str = "<unknown>"):
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(ProgramLexer(Input(text, name)))
        self._content = text
        self._known_types: dict[str, TypeAttribute] = {}
        self._known_lists: dict[str, list[Any]] = {}
        self._known_dictionaries: dict[str, dict[str, Attribute]] = {}

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
