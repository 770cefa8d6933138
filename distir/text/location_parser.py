"""A parser of `loc(...)`, as upstream MLIR writes it."""

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, FusedLoc, LocationAttr, NoneAttr
from xdsl.utils.mlir_lexer import MLIRTokenKind

from distir.text.number_parser import NumberParser

_DEFINITION = re.compile(r"^(#[\w$.-]+)\s*=\s*(?=loc\()", re.MULTILINE)


class LocationParser(NumberParser):
    """
    xDSL's parser, extended by three forms of locations:

    - aliases that the text defines after their use, at its end;
    - ranges, `"model.py":2:35 to :38`; only the start of a range is kept;
    - fused locations with metadata, `fused<"pass">["a", "b"]`; the metadata are left
      out.
    """

    def __init__(self, ctx: Context, text: str, name: str = "<unknown>"):
        super().__init__(ctx, text, name)
        self._definitions: dict[str, int] | None = None
        self._open: list[str] = []
        self._ahead: set[str] = set()

    def _parse_location(self) -> LocationAttr:
        token = self._current_token
        if token.kind is MLIRTokenKind.HASH_IDENT:
            if token.text not in self.attribute_aliases:
                self._look_ahead(token.text)
            return super()._parse_location()
        if token.kind is MLIRTokenKind.BARE_IDENT and token.text == "fused":
            self.parse_keyword("fused")
            if self.parse_optional_punctuation("<") is not None:
                self.parse_attribute()
                self.parse_punctuation(">")
            parts = self.parse_comma_separated_list(
                self.Delimiter.SQUARE, self._parse_location
            )
            return FusedLoc(tuple(parts), NoneAttr())
        found = super()._parse_location()
        if isinstance(found, FileLineColLoc) and self.parse_optional_keyword("to"):
            self.parse_optional_integer(False, False)
            self.parse_punctuation(":")
            self.parse_integer(False, False)
        return found

    def _look_ahead(self, alias: str) -> None:
        """
        Reads the definition of a location that comes later in the text, if there is one.
        """
        content = self.lexer.input.content
        if self._definitions is None:
            self._definitions = {
                match[1]: match.end() for match in _DEFINITION.finditer(content)
            }
        start = self._definitions.get(alias)
        if start is None:
            return
        if alias in self._open:
            self.raise_error(f"location '{alias}' is defined by itself")
        here = self.pos
        self._open.append(alias)
        self._resume_from(start)
        found = self.parse_optional_location()
        assert found is not None  # the definition begins with `loc(`
        self._open.pop()
        self._ahead.add(alias)
        self.attribute_aliases[alias] = found
        self._resume_from(here)

    def _parse_alias_def(self) -> None:
        name = self._current_token.text
        if name in self._ahead:  # it was read where it is used
            self._ahead.remove(name)
            del self.attribute_aliases[name]
        super()._parse_alias_def()
