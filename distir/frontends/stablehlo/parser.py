"""Parses StableHLO text, in generic and in pretty form, as JAX prints it."""

from __future__ import annotations

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
from distir.text.location_parser import LocationParser
from distir.text.parser import ProgramParser

DIALECTS = ("stablehlo", "chlo", "sdy", "mhlo", "vhlo")
"""The dialects whose ops may be in the text."""

_SHORT_FORMS = {
    "return": "func.return",
    "call": "func.call",
    "module": "builtin.module",
}


def name_of(location: LocationAttr | None) -> str:
    """Returns the name that JAX gave an op, such as `jit(step)/dot_general`, or ""."""
    if isinstance(location, FusedLoc) and isinstance(location.locations, ArrayAttr):
        return next(filter(None, map(name_of, location.locations.data)), "")
    return location.desc.data if isinstance(location, NameLoc) else ""


class StablehloParser(ProgramParser):
    """A parser of modules with StableHLO ops. Ops keep their locations."""

    def __init__(self, text: str, name: str = "<unknown>"):
        context = Context(allow_unregistered=True)
        context.load_dialect(Builtin)
        context.load_dialect(Func)
        super().__init__(context, text, name)

    def parse_operation(self) -> Operation:
        return LocationParser.parse_operation(self)

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
