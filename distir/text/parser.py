"""A parser for `.mlir` text that is fast on long programs."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation, TypeAttribute
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRTokenKind

from distir.dominance import check_dominance
from distir.plugins import installed_universe
from distir.text.known_ops import KnownOp, OpForm, OpText
from distir.text.lexer import ProgramLexer

_TYPE = re.compile(
    r'tensor<[^<>"]*+(?:<[^<>"]*+>)?+>|![a-zA-Z_][a-zA-Z0-9_$]*+(?![.-]|\s*<)', re.ASCII
)
"""A tensor type, or the name of a type."""

_DICTIONARY = re.compile(r'\{(?!-#)[^{}"\n]*+(?:"[^"\\\n]*+"[^{}"\n]*+)*+\}')
_STRING = r'([a-zA-Z_][a-zA-Z0-9_$.]*+) = "([ !#-\[\]-~]*+)"'
_ONE_STRING = re.compile(_STRING)
_STRINGS = re.compile(rf"\{{{_STRING}(?:, {_STRING})*+\}}")

LARGEST_CONSTANT = 1 << 28
"""
The most bytes of a constant in a program; xDSL holds every element of one, equal or not.
"""


def new_context() -> Context:
    """
    Returns a context with every dialect of this environment, those of plugins included.
    """
    context = Context()
    for name, factory in installed_universe().all_dialects.items():
        context.register_dialect(name, factory)
    return context


class ProgramParser(Parser):
    """
    xDSL's parser of MLIR's text, for programs of DistIR. Text that is no program, whatever
    it is, raises ParseError or VerifyException; a program whose values are used before they
    are defined raises DistIRError.

    It has a memory: a distributed program of many layers and stages repeats a few hundred
    ops, types and attribute dictionaries thousands of times. What has been read before is
    recognised by its text, an op by its text without names (of values, of types, of
    callees). Anything else is left to xDSL, so that what is accepted, and the errors, stay
    the same.
    """

    def __init__(self, ctx: Context, text: str, name: str = "<unknown>"):
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(ProgramLexer(Input(text, name)))
        self._content = text
        self._known_types: dict[str, TypeAttribute] = {}
        self._known_dictionaries: dict[str, dict[str, Attribute]] = {}
        self._known_ops: dict[str, KnownOp] = {}
        self._known_forms: dict[str, tuple[OpForm, KnownOp]] = {}

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

    def parse_operation(self) -> Operation:
        """
        Parses an op; one whose text was read before, except for names of values, is copied.
        """
        text = OpText.at(self._content, self._current_token.span.start)
        if text is None:
            return super().parse_operation()
        known = self._known_ops.get(text.key) or self._renamed(text)
        if known is not None and not self.forward_ssa_references:
            op = known.read(text, self.ssa_values)
            if op is not None:
                self._resume_from(text.end)
                return op
        op = super().parse_operation()
        known = KnownOp.of(op, text, self.ssa_values)
        if known is not None:
            self._known_ops[text.key] = known
            self._known_forms.setdefault(text.form.key, (text.form, known))
        return op

    def _renamed(self, text: OpText) -> KnownOp | None:
        """
        Returns what is known of an op from another one that differs in names alone, if
        there is one.
        """
        before = self._known_forms.get(text.form.key)
        if before is None:
            return None
        form, known = before
        found = known.renamed(form, text.form, self.attribute_aliases)
        if found is not None:
            self._known_ops[text.key] = found
        return found

    def parse_optional_type(self) -> TypeAttribute | None:
        """Parses a type, if there is one."""
        token = self._current_token
        if token.kind not in (
            MLIRTokenKind.BARE_IDENT,
            MLIRTokenKind.EXCLAMATION_IDENT,
        ):
            return super().parse_optional_type()
        match = _TYPE.match(self._content, token.span.start)
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
        """Parses the attributes in braces; none if there are no braces."""
        start = self.pos
        match = _STRINGS.match(self._content, start)
        if match is not None:
            entries = _ONE_STRING.findall(match.group())
            found: dict[str, Attribute] = {k: StringAttr(v) for k, v in entries}
            if len(found) == len(entries):
                self._resume_from(match.end())
                return found
        match = _DICTIONARY.match(self._content, start)
        if match is None or "dense_resource" in match.group():
            return super().parse_optional_dictionary_attr_dict()
        text = match.group()
        if text in self._known_dictionaries:
            self._resume_from(match.end())
        else:
            found = super().parse_optional_dictionary_attr_dict()
            self._known_dictionaries[text] = dict(found)
        return dict(self._known_dictionaries[text])

    def parse_dense_int_or_fp_elements_attr(
        self, type: Any
    ) -> DenseIntOrFPElementsAttr[Any]:
        """
        Parses a constant; if all elements have one value, only that value is converted.
        """
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
