"""
A printer that writes each number exactly, in a form that every reader of MLIR
understands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from xdsl.context import Context
from xdsl.dialects.builtin import (
    AnyFloat,
    ComplexType,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    Float32Type,
    Float64Type,
    IntegerType,
    ModuleOp,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.printer import Printer
from xdsl.syntax_printer import SyntaxPrinter
from xdsl.targets.mlir import MLIRTarget

LONGEST_LIST = 100
"""
The most elements of a constant that are written as a list. A longer constant is written
as the string of its bytes, as in MLIR.
"""

_SIGNIFICANT_DIGITS: dict[Attribute, int] = {Float32Type(): 9, Float64Type(): 17}
"""
The number of significant digits that are enough to write any float of a type exactly.
For types that are not listed, Python's own text of a float is used.
"""


class NumberPrinter(Printer):
    """
    xDSL's printer, with exact floats. Finite floats are decimal, because plain
    `xdsl-opt` reads hexadecimal digits in `dense` as an integer. Infinities and NaNs
    are written as their bits. A constant is written as a single value only if all its
    elements have the same bits; 0 and -0 have different bits.

    Names of values are unique within a function. In xDSL's printer, the second value
    with the hint `a` and the first one with the hint `a_1` can both be named `a_1`.
    """

    def print_ssa_value(self, value: SSAValue) -> str:
        """Prints the name of `value`, and returns the name."""
        name = self.name_of(value)
        self.print_string(f"%{name}")
        return name

    def name_of(self, value: SSAValue) -> str:
        """
        Returns the name of `value` in the text. A value that was not printed before gets
        a name that is not taken yet.
        """
        name = self._ssa_values.get(value)
        if name is None:
            name = self._ssa_values[value] = self._free_name(value.name_hint)
        return name

    def _free_name(self, hint: str | None) -> str:
        if not hint:
            return self._get_new_valid_name_id()
        names, name = self.ssa_names, hint
        number = names.get(hint, 0)
        if number:
            while (name := f"{hint}_{number}") in names:
                number += 1
            names[name] = 1
        names[hint] = number + 1
        return name

    def print_float(self, value: float, type: AnyFloat) -> None:
        """Prints a float without its type."""
        if not math.isfinite(value):
            self._print_bits(type.pack((value,)))
            return
        text = f"{value:.5e}".replace("e", "0e")
        if type.unpack(type.pack((float(text),)), 1)[0] != value:
            digits = _SIGNIFICANT_DIGITS.get(type)
            text = repr(value) if digits is None else f"{value:.{digits}g}"
            if "." not in text:
                mantissa, exponent, power = text.partition("e")
                text = f"{mantissa}.0{exponent}{power}"
        self.print_string(text)

    def print_attribute(self, attribute: Attribute) -> None:
        """Prints an attribute, followed by its type if it has one."""
        if isinstance(attribute, DenseIntOrFPElementsAttr):
            self.print_dense(attribute)
            self.print_string(" : ")
            self.print_attribute(attribute.get_type())
        elif isinstance(attribute, DenseArrayBase) and isinstance(
            attribute.elt_type, AnyFloat
        ):
            self._print_float_array(attribute)
        else:
            super().print_attribute(attribute)

    def print_dense(self, constant: DenseIntOrFPElementsAttr[Any]) -> None:
        """Prints a constant without its type."""
        type_ = constant.get_element_type()
        data = constant.data.data
        count = len(constant)
        self.print_string("dense")
        with self.in_angle_brackets():
            if count == 0:
                pass
            elif data == data[: type_.compile_time_size] * count:
                self._print_elements(constant, range(1), ())
            elif count > LONGEST_LIST and type_ != IntegerType(1):
                self.print_string(f'"0x{data.hex().upper()}"')
            else:
                self._print_elements(constant, range(count), constant.get_shape())

    def _print_elements(
        self,
        constant: DenseIntOrFPElementsAttr[Any],
        indices: range,
        shape: Sequence[int],
    ) -> None:
        """
        Prints the elements of `constant` at `indices`, as nested lists of shape
        `shape`.
        """
        if not shape:
            self._print_element(constant, indices[0])
            return
        size = len(indices) // shape[0]
        starts = range(0, len(indices), size)
        with self.in_square_brackets():
            self.print_list(
                [indices[start : start + size] for start in starts],
                lambda part: self._print_elements(constant, part, shape[1:]),
            )

    def _print_element(
        self, constant: DenseIntOrFPElementsAttr[Any], index: int
    ) -> None:
        type_ = constant.get_element_type()
        size = type_.compile_time_size
        raw = constant.data.data[index * size : (index + 1) * size]
        if isinstance(type_, ComplexType):
            part = type_.element_type
            with self.in_parens():
                self._print_number(raw[: size // 2], part)
                self.print_string(",")
                self._print_number(raw[size // 2 :], part)
        else:
            self._print_number(raw, type_)

    def _print_number(self, raw: bytes, type_: Any) -> None:
        """Prints an element of a constant, given its bytes `raw` and its type."""
        value = type_.unpack(raw, 1)[0]
        if not isinstance(type_, AnyFloat):
            self.print_int(value, type_)
        elif math.isnan(value):
            self._print_bits(raw)
        else:
            self.print_float(value, type_)

    def _print_bits(self, raw: bytes) -> None:
        self.print_string(f"0x{raw[::-1].hex().upper()}")

    def _print_float_array(self, array: DenseArrayBase[Any]) -> None:
        type_ = array.elt_type
        size = type_.compile_time_size
        starts = range(0, len(array.data.data), size)
        self.print_string("array")
        with self.in_angle_brackets():
            self.print_attribute(type_)
            if starts:
                self.print_string(": ")
            self.print_list(
                [array.data.data[start : start + size] for start in starts],
                lambda raw: self._print_number(raw, type_),
            )


class _NumberSyntaxPrinter(NumberPrinter, SyntaxPrinter):
    """A number printer that colours its text for a terminal."""


@dataclass(frozen=True)
class ProgramTarget(MLIRTarget):
    """
    The target `mlir` of `distir-opt`: xDSL's target, with numbers written exactly.
    """

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Prints `module` to `output`."""
        kind = _NumberSyntaxPrinter if self.syntax_highlight else NumberPrinter
        printer = kind(
            stream=output,
            print_generic_format=self.print_generic_format,
            print_properties_as_attributes=self.print_properties_as_attributes,
            print_debuginfo=self.print_debuginfo,
        )
        printer.print_op(module)
        printer.print_metadata(ctx.loaded_dialects)
        print("\n", file=output)
