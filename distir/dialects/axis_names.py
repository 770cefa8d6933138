"""
The text of mesh axes in programs: bare words, `[d, t]` and `<d = 2, t = 4>`, as in
layouts.

The parser also reads names in quotes, which older programs have.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer


def parse_axis(parser: AttrParser) -> str:
    """
    Parses the name of an axis: an identifier, or a string in quotes, which older
    programs have.
    """
    quoted = parser.parse_optional_str_literal()
    return parser.parse_identifier(" for a mesh axis") if quoted is None else quoted


def print_axis(printer: Printer, name: str) -> None:
    """Prints the name of an axis, in quotes only if the name is not an identifier."""
    if name.isidentifier() and name.isascii():
        printer.print_string(name)
    else:
        printer.print_string_literal(name)


@irdl_custom_directive
class AxisNames(CustomDirective):
    """
    The directive that writes a list of mesh axes in an op's text, such as `[d, t]`. In
    generic form the attribute is a list of strings.
    """

    axes: AttributeVariable

    def is_anchorable(self) -> bool:
        return True  # so that an op may have no axes

    def is_present(self, op: IRDLOperation) -> bool:
        return self.axes.is_present(op)

    def set_empty(self, state: ParsingState) -> None:
        self.axes.set_empty(state)

    def parse(self, parser: Parser, state: ParsingState) -> None:
        names = parser.parse_comma_separated_list(
            parser.Delimiter.SQUARE, lambda: parse_axis(parser)
        )
        self.axes.set(state, ArrayAttr([StringAttr(name) for name in names]))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        axes = self.axes.get(op)
        assert isinstance(axes, ArrayAttr)
        names = [axis.data for axis in axes.data if isinstance(axis, StringAttr)]
        state.print_whitespace(printer)
        with printer.in_square_brackets():
            printer.print_list(names, lambda name: print_axis(printer, name))
