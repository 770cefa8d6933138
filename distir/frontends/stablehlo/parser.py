"""Parses StableHLO text, in generic and in pretty form, as JAX prints it."""

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    Builtin,
    FusedLoc,
    LocationAttr,
    ModuleOp,
    NameLoc,
)
from xdsl.dialects.func import Func
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.frontends.stablehlo.assembly import hlo_op
from distir.text.known_ops import KnownOp, OpText
from distir.text.location_parser import LocationParser
from distir.text.parser import ProgramParser

DIALECTS = ("stablehlo", "chlo", "sdy", "mhlo", "vhlo")
"""The dialects whose ops may be in the text."""

_NAME = r"%(?:[0-9]++|[a-zA-Z_][a-zA-Z0-9_]*+)"
_NAMES = rf"{_NAME}(?:, {_NAME})*+"
_LINE = re.compile(
    rf'({_NAMES}) = ("stablehlo\.[a-z_0-9]++")\(((?:{_NAMES})?+)\)([^%\n]*)'
    r"(?<=[\w>)]) loc\((#loc[0-9]*+)\)(?=\n)",
    re.ASCII,
)
"""
Matches an op in generic form whose text is one line that ends with a named location. Its
parts are the names of results, the op, the names of operands, what follows, and the
location.
"""

_SHORT_FORMS = {
    "return": "func.return",
    "call": "func.call",
    "module": "builtin.module",
}


def name_of(location: LocationAttr | None) -> str:
    """
    Returns the name that JAX gave an op, such as `jit(step)/dot_general`, or "" without
    a name.
    """
    if isinstance(location, FusedLoc) and isinstance(location.locations, ArrayAttr):
        return next(filter(None, map(name_of, location.locations.data)), "")
    return location.desc.data if isinstance(location, NameLoc) else ""


class StablehloParser(ProgramParser):
    """
    A parser of modules with StableHLO ops. Ops keep their locations. If the texts of
    several ops differ only in locations and the names of values, the first op is parsed
    and then copied.
    """

    def __init__(self, text: str, name: str = "<unknown>"):
        context = Context(allow_unregistered=True)
        context.load_dialect(Builtin)
        context.load_dialect(Func)
        super().__init__(context, text, name)
        self._known_lines: dict[str, KnownOp] = {}

    def parse_operation(self) -> Operation:
        match = _LINE.match(self._content, self._current_token.span.start)
        if match is None or self.forward_ssa_references:
            return LocationParser.parse_operation(self)
        results, name, operands, rest, location = match.groups()
        names = results[1:].split(", %")
        key = f"{len(names)}{name}{operands.count('%')}{rest}"
        if operands:
            names += operands[1:].split(", %")
        text = OpText(key, names, match.end())
        known = self._known_lines.get(key)
        if known is not None:
            if location not in self.attribute_aliases:
                self._look_ahead(location)
            found = self.attribute_aliases.get(location)
            if (
                isinstance(found, LocationAttr)
                and (op := known.read(text, self.ssa_values)) is not None
            ):
                op.location = found
                self._resume_from(text.end)
                return op
        op = LocationParser.parse_operation(self)
        # Two ops may stand in one line, and a string may look like a location.
        located = op.location == self.attribute_aliases.get(location)
        if located and "loc(" not in rest and self.pos >= text.end:
            known = KnownOp.of(op, text, self.ssa_values)
            if known is not None:
                self._known_lines[key] = known
        return op

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
