"""A parser for the numbers in MLIR text, including hexadecimal floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from xdsl.dialects.builtin import (
    AnyFloat,
    BytesAttr,
    ComplexType,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
)
from xdsl.parser import Parser
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

LARGEST_CONSTANT = 1 << 28
"""
The most bytes that a constant in a program may have. xDSL stores every element, even if
all are equal.
"""

_HEXADECIMAL = re.compile(r"(-?)\s*(0x[0-9a-fA-F]+)")


class Bits(int):
    """
    An integer that was written in hexadecimal. As an element of a float type, it is the
    bits of the float.
    """

    def __neg__(self) -> Bits:
        return Bits(-int(self))


class NumberParser(Parser):
    """
    xDSL's parser, with MLIR's meaning of numbers. A hexadecimal number with a float
    type is the bits of the float: `0xFF800000 : f32` is minus infinity. This applies to
    `dense` (a single value, nested lists, or a string of all bytes), to complex
    elements, to `array` and to attributes. The bits of NaNs are kept, except in an
    attribute that is a single float, which xDSL stores as a Python float.
    """

    def parse_optional_builtin_int_or_float_attr(
        self,
    ) -> IntegerAttr[Any] | FloatAttr[Any] | None:
        """
        Parses an integer or a float with its type. Returns None if the next token is
        not a number.
        """
        start = self.pos
        digits = _HEXADECIMAL.match(self._current_token.span.input.content, start)
        try:
            found = super().parse_optional_builtin_int_or_float_attr()
        except OverflowError:
            self.raise_error("this number is beyond its type", start, self.pos)
        if digits is None or not isinstance(found, FloatAttr):
            return found
        raw = self._bytes_of(Bits(int("".join(digits.groups()), 16)), found.type)
        return FloatAttr(next(iter(found.type.iter_unpack(raw))), found.type)

    def parse_dense_int_or_fp_elements_attr(
        self, type: Any
    ) -> DenseIntOrFPElementsAttr[Any]:
        """
        Parses a constant. If all its elements are equal, only one of them is converted.
        """
        start = self.pos
        self.parse_punctuation("<", " in dense attribute")
        if self._current_token.kind is MLIRTokenKind.GREATER:
            self._resume_from(start)
            return super().parse_dense_int_or_fp_elements_attr(type)
        text = self.parse_optional_str_literal()
        elements, shape = ([], []) if text is not None else self._parse_tensor_literal()
        self.parse_punctuation(">", " in dense attribute")
        if type is None:
            self.parse_punctuation(":", " in dense attribute")
            type = self._parse_dense_literal_type()
        expected = list(type.get_shape())
        if text is not None:
            data = self._bytes_of_string(text, type.element_type, prod(expected))
        elif shape and shape != expected:
            self.raise_error(
                f"a constant with elements of shape {shape} has a type of shape {expected}"
            )
        else:
            values = [
                e.value
                if isinstance(e.value, Bits | tuple)
                or isinstance(type.element_type, ComplexType)
                else e.to_type(self, type.element_type)
                for e in elements
            ]
            data = self._packed(values, type.element_type)
            if not shape:
                data *= prod(expected)
        return DenseIntOrFPElementsAttr(type, BytesAttr(data))

    def _parse_dense_literal_type(self) -> Any:
        type_ = super()._parse_dense_literal_type()
        size = prod(type_.get_shape()) * type_.element_type.compile_time_size
        if size > LARGEST_CONSTANT:
            self.raise_error(
                f"a constant of {size} bytes; at most {LARGEST_CONSTANT} can be in a "
                f"program, make a parameter of it"
            )
        return type_

    def _parse_builtin_densearray_attr(self) -> DenseArrayBase[Any] | None:
        start = self.pos
        self.parse_characters("<", " in dense array")
        type_ = self.parse_attribute()
        if not isinstance(type_, AnyFloat) or not self.parse_optional_punctuation(":"):
            self._resume_from(start)
            return super()._parse_builtin_densearray_attr()
        values = self.parse_comma_separated_list(
            self.Delimiter.NONE, lambda: self._parse_bool_int_or_float()[0]
        )
        self.parse_characters(">", " in dense array")
        return DenseArrayBase(type_, BytesAttr(self._packed(values, type_)))

    def _parse_optional_bool_int_or_float(
        self,
    ) -> tuple[bool | int | float, Span] | None:
        found = super()._parse_optional_bool_int_or_float()
        if found is None or not _HEXADECIMAL.fullmatch(found[1].text):
            return found
        return Bits(found[0]), found[1]

    def _parse_optional_complex(self) -> Any:
        if self._current_token.kind is not MLIRTokenKind.L_PAREN:
            return None
        start = self._consume_token(MLIRTokenKind.L_PAREN).span
        real, _ = self._parse_bool_int_or_float()
        self.parse_punctuation(",")
        imaginary, _ = self._parse_bool_int_or_float()
        end = self._consume_token(MLIRTokenKind.R_PAREN).span
        return (real, imaginary), Span(start.start, end.end, start.input)

    def _packed(self, values: Sequence[Any], type_: Any) -> bytes:
        """
        Returns the bytes of a constant's elements `values`, whose type is `type_`.
        """
        if isinstance(type_, ComplexType):
            if not all(isinstance(value, tuple) for value in values):
                self.raise_error(f"an element of {type_} is not a pair of numbers")
            parts = [part for value in values for part in value]
            return self._packed(parts, type_.element_type)
        if any(isinstance(value, tuple) for value in values):
            self.raise_error(f"a complex number is an element of {type_}")
        if not isinstance(type_, AnyFloat):
            if any(isinstance(value, float) for value in values):
                self.raise_error(f"a float is an element of {type_}")
            if isinstance(type_, IntegerType):
                values = [type_.get_normalized_value(value) for value in values]
            return type_.pack(values)
        packed = bytearray(
            type_.pack([1.0 if isinstance(v, Bits) else float(v) for v in values])
        )
        size = type_.compile_time_size
        for index, value in enumerate(values):
            if isinstance(value, Bits):
                place = slice(index * size, (index + 1) * size)
                packed[place] = self._bytes_of(value, type_)
        return bytes(packed)

    def _bytes_of(self, bits: Bits, type_: AnyFloat) -> bytes:
        """
        Returns the little-endian bytes of a float of type `type_` with the given bits.
        """
        if bits < 0:
            self.raise_error("a float in hexadecimal digits has its sign in these")
        if bits.bit_length() > type_.bitwidth:
            self.raise_error(
                f"0x{bits:X} has more than the {type_.bitwidth} bits of {type_}"
            )
        return bits.to_bytes(type_.compile_time_size, "little")

    def _bytes_of_string(self, text: str, type_: Any, count: int) -> bytes:
        """
        Returns the bytes of a constant of `count` elements that is written as a string
        of hexadecimal digits. The string holds all elements, or a single element if all
        are equal.
        """
        try:
            data = bytes.fromhex(text.removeprefix("0x"))
        except ValueError:
            self._refuse_string(text)
        if not text.startswith("0x"):
            self._refuse_string(text)
        if type_ == IntegerType(1):
            return self._truths(data, count)
        size = type_.compile_time_size
        if len(data) == size:
            return data * count
        if len(data) != size * count:
            self.raise_error(
                f"a constant of {count} elements of {type_} has {size * count} bytes, and "
                f"the string has {len(data)}"
            )
        return data

    def _truths(self, data: bytes, count: int) -> bytes:
        """
        Returns the bytes of a constant of `count` booleans from the bytes `data` of a
        string. MLIR writes one bit per element, lowest bit first, or a single byte of
        equal bits if all elements are equal. xDSL and newer versions of MLIR write one
        byte per element.
        """
        if len(data) == 1 and (data in (b"\x00", b"\xff") or count == 1):
            truths = [data != b"\x00"] * count
        elif len(data) == count:
            truths = [byte != 0 for byte in data]
        elif len(data) == -(-count // 8) > 1:
            truths = [bool(data[i // 8] >> i % 8 & 1) for i in range(count)]
        else:
            self.raise_error(
                f"{len(data)} bytes for {count} elements of i1 can mean several things; "
                f"write true and false"
            )
        return IntegerType(1).pack([-truth for truth in truths])

    def _refuse_string(self, text: str) -> NoReturn:
        shown = text if len(text) < 20 else f"{text[:16]}..."
        self.raise_error(
            f'"{shown}" is no constant; a string in `dense` is 0x and two hexadecimal '
            f"digits for each byte"
        )
