"""Parses StableHLO text, in generic and in pretty form, as JAX prints it."""

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.dialects.builtin import (
    Builtin,
    FileLineColLoc,
    IntAttr,
    LocationAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
)
from xdsl.dialects.func import Func
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.frontends.stablehlo.assembly import hlo_op
from distir.text.number_parser import NumberParser
from distir.text.parser import ProgramParser

DIALECTS = ("stablehlo", "chlo", "sdy", "mhlo", "vhlo")
"""The dialects whose ops may be in the text."""

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$", re.MULTILINE)
_REFERENCE = re.compile(r"loc\((#loc\d*|unknown)\)")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"(?!:)')
_ALIASES_IN = re.compile(r"#loc\d*")
_SHORT_FORMS = {
    "return": "func.return",
    "call": "func.call",
    "module": "builtin.module",
}


class Locations:
    """
    The locations of a text by alias: the name of an op in JAX, and the line of the
    user's code.
    """

    def __init__(self, text: str):
        self._texts = dict(_ALIAS.findall(text))
        self._found: dict[str, LocationAttr] = {}

    def resolved(self, alias: str) -> LocationAttr:
        """
        Returns the location of `alias`: file, line and column of the innermost frame,
        within a NameLoc if the op has a name.
        """
        found = self._found.get(alias)
        if found is None:
            found = self.of_text(self._texts.get(alias, ""))
            self._found[alias] = found
        return found

    def of_text(self, text: str) -> LocationAttr:
        """Returns the location for the text inside `loc(...)`."""
        name = _NAME.search(text)
        line = self._line(text, 0)
        if name is None:
            return line
        return NameLoc(StringAttr(name[1]), line)

    def _line(self, text: str, depth: int) -> LocationAttr:
        found = _FILE.search(text)
        if found is not None:
            file, line, column = found.groups()
            return FileLineColLoc(
                StringAttr(file), IntAttr(int(line)), IntAttr(int(column))
            )
        for alias in _ALIASES_IN.findall(text):
            if alias in self._texts and depth < 100:
                inner = self._line(self._texts[alias], depth + 1)
                if isinstance(inner, FileLineColLoc):
                    return inner
        return FileLineColLoc(StringAttr(""), IntAttr(0), IntAttr(0))


def name_of(location: LocationAttr | None) -> str:
    """Returns the name that JAX gave an op, such as `jit(step)/dot_general`, or ""."""
    return location.desc.data if isinstance(location, NameLoc) else ""


class StablehloParser(ProgramParser):
    """A parser of modules with StableHLO ops. Ops keep their locations."""

    def __init__(self, text: str, name: str = "<unknown>"):
        context = Context(allow_unregistered=True)
        context.load_dialect(Builtin)
        context.load_dialect(Func)
        self.locations = Locations(text)
        super().__init__(context, _ALIAS.sub("", text), name)

    def parse_operation(self) -> Operation:
        return NumberParser.parse_operation(self)

    def parse_optional_location(self) -> LocationAttr | None:
        match = _REFERENCE.match(self._content, self.pos)
        if match is not None:
            self._resume_from(match.end())
            return self.locations.resolved(match[1])
        if not self._content.startswith("loc(", self.pos):
            return None
        end = self._closing(self.pos + 3)
        inner = self._content[self.pos + 4 : end]
        self._resume_from(end + 1)
        return self.locations.of_text(inner)

    def _closing(self, start: int) -> int:
        """
        Returns the position of the parenthesis that closes the one at `start`.
        Parentheses in quotes do not count.
        """
        depth, quoted, pos = 0, False, start
        while pos < len(self._content):
            char = self._content[pos]
            if char == "\\" and quoted:
                pos += 1
            elif char == '"':
                quoted = not quoted
            elif not quoted and char in "()":
                depth += 1 if char == "(" else -1
                if not depth:
                    return pos
            pos += 1
        self.raise_error("this location is not closed")

    def _get_op_by_name(self, name: str) -> type[Operation]:
        name = _SHORT_FORMS.get(name, name)
        if name.partition(".")[0] in DIALECTS:
            return hlo_op(name)
        return super()._get_op_by_name(name)


def parse_stablehlo(text: str, name: str = "<unknown>") -> ModuleOp:
    """
    Parses a StableHLO text and returns its module. `name` names the text in messages.
    Raises DistIRError if the text is bytecode or cannot be parsed.
    """
    if text.startswith("ML\xefR") or "\0" in text[:100]:
        raise DistIRError(
            f"{name} is MLIR bytecode, not text; write text with "
            f"jax.jit(f).lower(...).as_text()"
        )
    return StablehloParser(text, name).parse_module()
