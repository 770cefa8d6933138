"""A parser for `.mlir` text that is fast on long programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import (
    FileLineColLoc,
    FunctionType,
    IntAttr,
    ModuleOp,
    StringAttr,
    UnknownLoc,
    UnregisteredOp,
)
from xdsl.ir import Attribute, Operation, SSAValue, TypeAttribute
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import DiagnosticException, ParseError, VerifyException
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from distir.dialects.registries import READ_BY_IMPORT
from distir.errors import did_you_mean
from distir.program import is_name_hint
from distir.program.checks import (
    check_dist_attributes,
    check_dominance,
    check_functions,
)
from distir.system.plugins import installed_universe
from distir.text.known_ops import KnownOp, OpForm, OpText
from distir.text.lexer import ProgramLexer
from distir.text.location_parser import LocationParser
from distir.text.old_forms import bring_up_to_date

_TENSOR = r'tensor<[^<>"]*+(?:<[^<>"]*+>)?+>'
_TYPE = re.compile(rf"{_TENSOR}|![a-zA-Z_][a-zA-Z0-9_$]*+(?![.-]|\s*<)", re.ASCII)
"""Matches a tensor type, or the name of a type."""

CONTROL_FLOW = ("cf", "scf")
"""The dialects whose ops get the place in the text as location, if they have none."""

_DICTIONARY = re.compile(r'\{(?!-#)[^{}"\n]*+(?:"[^"\\\n]*+"[^{}"\n]*+)*+\}')
_FUNCTION = re.compile(
    r"func\.func (?:private |public )?@[a-zA-Z_][a-zA-Z0-9_$.]*+(?=\()"
)
_ARGUMENT = re.compile(
    r"(%(?:[0-9]++|[a-zA-Z$._-][a-zA-Z0-9$._-]*+)): "
    rf"({_TYPE.pattern})(?: ({_DICTIONARY.pattern}))?+(?:, (?=%)|(?=\)))",
    re.ASCII,
)
"""
Matches an argument of a function, up to the next one: its name, its type, and its
attributes.
"""

_RESULT = re.compile(
    rf"({_TYPE.pattern})(?: ({_DICTIONARY.pattern}))?+(?:, (?=[t!])|(?=\)))", re.ASCII
)
"""Matches the type of a function's result, up to the next one, with its attributes."""

_PROPERTIES = re.compile(rf"<{_DICTIONARY.pattern}>")
_TYPES = rf"\((?:{_TENSOR}(?:, {_TENSOR})*+)?+\)"
_FUNCTION_TYPE = re.compile(rf"{_TYPES} -> (?:{_TENSOR}|{_TYPES})")
_STRING = r'([a-zA-Z_][a-zA-Z0-9_$.]*+) = "([ !#-\[\]-~]*+)"'
_ONE_STRING = re.compile(_STRING)
_STRINGS = re.compile(rf"\{{{_STRING}(?:, {_STRING})*+\}}")


def new_context() -> Context:
    """
    Returns a context with every installed dialect, including the dialects of plugins.
    """
    context = Context()
    for name, factory in installed_universe().all_dialects.items():
        context.register_dialect(name, factory)
    return context


class ProgramParser(LocationParser):
    """
    A parser of MLIR text, for programs of DistIR. Text that is not a program raises
    ParseError or VerifyException. A program that uses a value before its definition
    raises DistIRError.

    The parser has a cache, because a distributed program of many layers and stages
    repeats a few hundred ops, types and attribute dictionaries thousands of times.
    Repetitions are recognised by their text; for an op, the names of values, types and
    callees may differ. All other text is left to xDSL, so the accepted texts and the
    errors stay the same.
    """

    def __init__(self, ctx: Context, text: str, name: str = "<unknown>"):
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(ProgramLexer(Input(text, name)))
        self._content = text
        self._known_types: dict[str, TypeAttribute] = {}
        self._known_dictionaries: dict[str, dict[str, Attribute]] = {}
        self._known_properties: dict[str, dict[str, Attribute]] = {}
        self._known_function_types: dict[str, FunctionType] = {}
        self._known_ops: dict[str, KnownOp] = {}
        self._known_forms: dict[str, tuple[OpForm, KnownOp]] = {}
        self._arguments_start = -1
        """The position of the parenthesis before the arguments of the last function."""
        self._results_start = -1
        """The position of the parenthesis before the results of the last function."""

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        try:
            module = super().parse_module(allow_implicit_module)
        except VerifyException as error:
            # An op or attribute that xDSL checks as it reads it.
            where = self._current_token.span.get_location()
            raise VerifyException(f"{where}: {error}") from error
        except (DiagnosticException, ParseError, MemoryError):
            raise
        except RecursionError:
            self.raise_error("this is nested too deep to be read")
        except Exception as error:
            # xDSL's parser, and constructors of attributes, may raise any exception:
            # ValueError, AssertionError, NotImplementedError, ...
            self.raise_error(f"cannot be read ({str(error) or type(error).__name__})")
        if len(module.body.blocks) != 1:
            self.raise_error("a module has one block")
        if "group" in self._content:
            bring_up_to_date(module)
        check_functions(module)
        check_dominance(module)
        check_dist_attributes(module)
        return module

    def parse_operation(self) -> Operation:
        """
        Parses an op. If the parser has read an op with the same text before, apart from
        names, it copies that op.
        """
        start = self._current_token.span.start
        text = OpText.at(self._content, start)
        if text is None:
            function = _FUNCTION.match(self._content, start)
            if function is not None:
                self._arguments_start = function.end()
            op = super().parse_operation()
            if op.dialect_name() in CONTROL_FLOW and isinstance(
                op.location, UnknownLoc
            ):
                # Passes refuse control flow; their errors name the line.
                line = self._content.count("\n", 0, start) + 1
                name = StringAttr(self.lexer.input.name)
                op.location = FileLineColLoc(name, IntAttr(line), IntAttr(1))
            return op
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

    def _register_ssa_definition(
        self, name: str, values: Sequence[SSAValue], span: Span
    ) -> None:
        super()._register_ssa_definition(name, values, span)
        if not is_name_hint(name):
            for value in values:
                value.name_hint = None

    def _get_op_by_name(self, name: str) -> type[Operation]:
        found = self.ctx.get_optional_op(
            name, dialect_stack=self._parser_state.dialect_stack
        )
        if found is None:
            self.raise_error(
                f"Operation {name} is not registered; {self._advice(name)}"
            )
        if issubclass(found, UnregisteredOp) and self._before().isidentifier():
            self.raise_error(
                f"Operation {name} is not registered, so that only its generic form can be "
                f'read: "{name}"(...) : (...) -> ..., as mlir-opt --mlir-print-op-generic '
                f"writes it"
            )
        return found

    def _before(self) -> str:
        """Returns the last character before the next token, without spaces."""
        start = self._current_token.span.start
        return self._content[max(0, start - 9) : start].rstrip()[-1:]

    def _advice(self, name: str) -> str:
        """
        Returns advice for an error message about an op `name` that no dialect has.
        """
        dialect = name.partition(".")[0]
        if self.ctx.get_optional_dialect(dialect) is not None:
            ops = [op.name for op in self.ctx.loaded_ops if op.name.startswith(dialect)]
            return f"{did_you_mean(name, ops)}`{dialect}` has no such operation"
        if dialect in READ_BY_IMPORT:
            return "`distir import` reads programs of this dialect, and writes them for DistIR"
        return (
            f"no installed package has the dialect `{dialect}` (packages publish dialects "
            f"under the entry point xdsl.universe); install one that has it, or write the "
            f"program in generic form (mlir-opt --mlir-print-op-generic) and give distir-opt "
            f"--allow-unregistered-dialect"
        )

    def _renamed(self, text: OpText) -> KnownOp | None:
        """
        Returns the facts about the op with text `text`, derived from a known op whose
        text differs only in names of types and callees. Returns None if no such op is
        known.
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
        """Parses a type. Returns None if the next token does not start a type."""
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

    def parse_comma_separated_list(
        self,
        delimiter: LocationParser.Delimiter,
        parse: Callable[[], Any],
        context_msg: str = "",
    ) -> list[Any]:
        """
        Parses a list with the results and errors of xDSL's parser. The arguments of a
        function, which may be thousands, are read without a token for each name, colon
        and comma.
        """
        start = self.pos
        if start == self._arguments_start:
            found = self._arguments(start + 1)
            if found is not None:
                return found
            self._resume_from(start)
        return super().parse_comma_separated_list(delimiter, parse, context_msg)

    def parse_optional_comma_separated_list(
        self,
        delimiter: LocationParser.Delimiter,
        parse: Callable[[], Any],
        context_msg: str = "",
    ) -> list[Any] | None:
        """
        Parses a list with the results and errors of xDSL's parser. The results of a
        function are read without a token for each type and comma. Returns None if there
        is no list.
        """
        start = self.pos
        if start == self._results_start:
            found = self._results(start + 1)
            if found is not None:
                return found
            self._resume_from(start)
        return super().parse_optional_comma_separated_list(
            delimiter, parse, context_msg
        )

    def _results(
        self, start: int
    ) -> list[tuple[TypeAttribute, dict[str, Attribute]]] | None:
        """
        Returns the types and attributes of a function's results. The text of the
        results begins at position `start`. Moves the parser behind the closing
        parenthesis. Returns None if a part of the text can only be read by xDSL.
        """
        found: list[tuple[TypeAttribute, dict[str, Attribute]]] = []
        content, end = self._content, start
        while (match := _RESULT.match(content, end)) is not None:
            found.append((self._type_in(match, 1), self._attributes_in(match, 2)))
            end = match.end()
        if not found or content[end : end + 1] != ")":
            return None
        self._resume_from(end + 1)
        return found

    def _type_in(self, match: re.Match[str], group: int) -> TypeAttribute:
        """Returns the type whose text is the group `group` of a match."""
        known = self._known_types.get(match.group(group))
        if known is not None:
            return known
        self._resume_from(match.start(group))
        return self.parse_type()

    def _attributes_in(self, match: re.Match[str], group: int) -> dict[str, Attribute]:
        """
        Returns the attributes whose text is the group `group` of a match. The result is
        empty if the group has no text.
        """
        text = match.group(group)
        if text is None:
            return {}
        known = self._known_dictionaries.get(text) or _strings(text)
        if known is None:
            self._resume_from(match.start(group))
            known = self.parse_optional_dictionary_attr_dict()
        return dict(known)

    def _arguments(
        self, start: int
    ) -> list[tuple[LocationParser.Argument, dict[str, Attribute]]] | None:
        """
        Returns the arguments of a function with their attributes. The text of the
        arguments begins at position `start`. Moves the parser behind the closing
        parenthesis. Returns None if a part of the text can only be read by xDSL.
        """
        found: list[tuple[LocationParser.Argument, dict[str, Attribute]]] = []
        content, end = self._content, start
        while (match := _ARGUMENT.match(content, end)) is not None:
            type_, attributes = self._type_in(match, 2), self._attributes_in(match, 3)
            name = Span(match.start(1), match.end(1), self.lexer.input)
            found.append((self.Argument(name, type_), attributes))
            end = match.end()
        if not found or content[end : end + 1] != ")":
            return None
        if content.startswith(" -> (", end + 1):
            self._results_start = end + len(") -> ")
        self._resume_from(end + 1)
        return found

    def parse_optional_dictionary_attr_dict(self) -> dict[str, Attribute]:
        """
        Parses the attributes in braces. Returns an empty dictionary if there are no
        braces.
        """
        start = self.pos
        match = _STRINGS.match(self._content, start)
        if match is not None:
            strings = _strings(match.group())
            if strings is not None:
                self._resume_from(match.end())
                return strings
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

    def parse_optional_properties_dict(self) -> dict[str, Attribute]:
        """
        Parses the properties of an op, attributes in `<{` and `}>`. Returns an empty
        dictionary if there are none.
        """
        match = _PROPERTIES.match(self._content, self.pos)
        if match is None or "dense_resource" in match.group():
            return super().parse_optional_properties_dict()
        text = match.group()
        if text in self._known_properties:
            self._resume_from(match.end())
        else:
            found = super().parse_optional_properties_dict()
            self._known_properties[text] = dict(found)
        return dict(self._known_properties[text])

    def parse_optional_function_type(self) -> FunctionType | None:
        """Parses the type of a function. Returns None if the next token is not `(`."""
        match = _FUNCTION_TYPE.match(self._content, self.pos)
        if match is None:
            return super().parse_optional_function_type()
        text = match.group()
        known = self._known_function_types.get(text)
        if known is not None:
            self._resume_from(match.end())
            return known
        found = super().parse_optional_function_type()
        if found is not None:
            self._known_function_types[text] = found
        return found


def _strings(text: str) -> dict[str, Attribute] | None:
    """
    Returns the attributes in the text `text`, which includes the braces, if all
    attributes are strings without escapes. Returns None for any other text, and if two
    attributes have the same name.
    """
    if _STRINGS.fullmatch(text) is None:
        return None
    entries = _ONE_STRING.findall(text)
    found: dict[str, Attribute] = {name: StringAttr(value) for name, value in entries}
    return found if len(found) == len(entries) else None
