"""Tests of how numbers are read from programs and written into them."""

import struct
from io import StringIO
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import BytesAttr, DenseIntOrFPElementsAttr, FloatAttr
from xdsl.ir import Attribute
from xdsl.utils.exceptions import ParseError

from distir.dialects.onnx_ops.values import constant_attr, constant_value
from distir.text import ProgramParser, new_context
from distir.text.number_printer import NumberPrinter


def _attribute(text: str) -> Any:
    program = f"builtin.module attributes {{a = {text}}} {{}}"
    return ProgramParser(new_context(), program).parse_module().attributes["a"]


def _text(attribute: Attribute) -> str:
    stream = StringIO()
    NumberPrinter(stream).print_attribute(attribute)
    return stream.getvalue()


@pytest.mark.parametrize(
    "literal, type_, data",
    [
        ("0xFF800000", "tensor<f32>", struct.pack("<f", -np.inf)),
        ("0xFF800000", "tensor<3xf32>", struct.pack("<3f", *[-np.inf] * 3)),
        ("0xFF800000", "vector<2xf32>", struct.pack("<2f", *[-np.inf] * 2)),
        ("[0x7F800000, 1.0]", "tensor<2xf32>", struct.pack("<2f", np.inf, 1)),
        ("[[0x7F800001], [-0.0]]", "tensor<2x1xf32>", b"\1\0\x80\x7f\0\0\0\x80"),
        ('"0x010080FF0000807F"', "tensor<2xf32>", b"\1\0\x80\xff\0\0\x80\x7f"),
        ('"0x000080FF"', "tensor<2xf32>", b"\0\0\x80\xff" * 2),
        ("0xFFF0000000000000", "tensor<f64>", struct.pack("<d", -np.inf)),
        ("0xFC00", "tensor<2xf16>", struct.pack("<2e", -np.inf, -np.inf)),
        ("[0xFF80, 0x3F80]", "tensor<2xbf16>", b"\x80\xff\x80\x3f"),
        ("[0x7F, 1.0]", "tensor<2xf8E4M3FN>", b"\x7f\x38"),
        ("0xFC", "tensor<f8E5M2>", b"\xfc"),
        ("0x7F", "tensor<2xf8E8M0FNU>", b"\x7f\x7f"),
        ("0xF", "tensor<f4E2M1FN>", b"\x0f"),
        ("(0x7F800000, 0.0)", "tensor<complex<f32>>", struct.pack("<2f", np.inf, 0)),
        ("0xFF", "tensor<2xi8>", b"\xff\xff"),
        ("[true, false]", "tensor<2xi1>", b"\xff\0"),
        ('"0xFF"', "tensor<9xi1>", b"\xff" * 9),
        ('"0xA501"', "tensor<9xi1>", bytes([255, 0, 255, 0, 0, 255, 0, 255, 255])),
        ('"0x0100FF"', "tensor<3xi1>", b"\xff\0\xff"),
    ],
)
def test_a_constant_is_the_bytes_that_its_text_says(
    literal: str, type_: str, data: bytes
) -> None:
    constant = _attribute(f"dense<{literal}> : {type_}")
    assert constant.data == BytesAttr(data)
    assert _attribute(_text(constant)) == constant


@pytest.mark.parametrize("type_, bits", [("f16", 16), ("bf16", 16), ("f8E4M3FN", 8)])
def test_every_bit_pattern_of_small_floats_is_read_back(type_: str, bits: int) -> None:
    patterns = np.arange(2**bits).astype(f"<u{bits // 8}")
    for row in patterns.reshape(-1, 64)[:: max(1, bits - 8)]:
        whole = row.tobytes().hex()
        constant = _attribute(f'dense<"0x{whole}"> : tensor<8x8x{type_}>')
        text = _text(constant)
        assert '"' not in text
        assert _attribute(text) == constant


def test_floats_of_32_and_64_bits_are_read_back() -> None:
    numbers = np.random.default_rng(0)
    for width, type_ in ((4, "f32"), (8, "f64")):
        for _ in range(20):
            data = numbers.bytes(16 * width)
            constant = _attribute(f'dense<"0x{data.hex()}"> : tensor<16x{type_}>')
            assert constant.data.data == data
            assert _attribute(_text(constant)).data.data == data


@pytest.mark.parametrize("number", [16777216.0, 1234567.0, 3e15, 1e22, -8388609.0])
@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_finite_floats_are_decimal(number: float, type_: str) -> None:
    """Plain `xdsl-opt` takes hexadecimal digits in `dense` for an integer."""
    dtype = {"f32": np.float32, "f64": np.float64}[type_]
    constant = constant_attr(np.array([number, 1], dtype))
    text = _text(constant)
    assert "0x" not in text
    assert constant_value(_attribute(text))[0] == dtype(number)
    assert "0x" not in _text(FloatAttr(number, {"f32": 32, "f64": 64}[type_]))


def test_zeros_with_a_sign_are_kept() -> None:
    zeros = np.array([0.0, -0.0, 0.0], np.float32)
    constant = constant_attr(zeros)
    for same in (constant, _attribute(_text(constant))):
        assert np.signbit(constant_value(same)).tolist() == [False, True, False]


def test_long_constants_are_strings_of_bytes_except_truth_values() -> None:
    truths = np.arange(300) % 3 == 0
    assert '"' not in _text(constant_attr(truths))
    for array in (truths, np.arange(300), np.arange(300, dtype=np.float32)):
        text = _text(constant_attr(array))
        assert (constant_value(_attribute(text)) == array).all()


@pytest.mark.parametrize(
    "text, value",
    [
        ("0xFF800000 : f32", -np.inf),
        ("0x7C00 : f16", np.inf),
        ("0xFF80 : bf16", -np.inf),
        ("0x4B800000 : f32", 16777216.0),
        ("0x38 : f8E4M3FN", 1.0),
    ],
)
def test_a_float_of_hexadecimal_digits_is_its_bits(text: str, value: float) -> None:
    attribute = _attribute(text)
    assert attribute.value.data == value
    assert _attribute(_text(attribute)) == attribute


def test_arrays_of_floats_have_hexadecimal_digits_too() -> None:
    array = _attribute("array<f32: 0x7F800001, -1.5, 0xFF800000>")
    assert array.data.data == b"\1\0\x80\x7f\0\0\xc0\xbf\0\0\x80\xff"
    assert _attribute(_text(array)) == array
    assert len(_attribute(_text(_attribute("array<f32>")))) == 0


@pytest.mark.parametrize(
    "text, message",
    [
        ("dense<-0x7F800000> : tensor<f32>", "has its sign in these"),
        ("-0x7F80 : bf16", "has its sign in these"),
        ("dense<0x1FF800000> : tensor<f32>", "more than the 32 bits of f32"),
        ("dense<[0x1F]> : tensor<1xf4E2M1FN>", "more than the 4 bits of f4E2M1FN"),
        ("0x1FFFF : bf16", "beyond its type"),
        ("1.0e39 : f32", "beyond its type"),
        ('dense<"0x00"> : tensor<2xf32>', "has 8 bytes, and the string has 1"),
        ('dense<"00000000"> : tensor<f32>', "is no constant"),
        ('dense<"0x0"> : tensor<f32>', "is no constant"),
        ('dense<"0xA5"> : tensor<8xi1>', "can mean several things"),
        ("dense<[1.0, 2.0]> : tensor<3xf32>", "shape [2] has a type of shape [3]"),
        ("dense<(1.0, 2.0)> : tensor<f32>", "a complex number is an element of f32"),
        ("dense<1.0> : tensor<complex<f32>>", "is not a pair of numbers"),
        ("dense<(1.0, 2.0)> : tensor<complex<i32>>", "a float is an element of i32"),
        ("dense<1.0> : tensor<f80>", "cannot be read"),
        ("array<f32: 0x1FFFFFFFF>", "more than the 32 bits"),
    ],
)
def test_other_numbers_are_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        _attribute(text)
    assert message in str(error.value)


def test_constants_are_the_attributes_that_xdsl_makes() -> None:
    """Equal constants are equal attributes, whoever makes them."""
    for array in (np.array([True, False]), np.array([1, 255], np.uint8), np.ones(3)):
        constant = constant_attr(array)
        assert isinstance(constant, DenseIntOrFPElementsAttr)
        type_: Any = constant.type
        values = array.tolist()
        assert DenseIntOrFPElementsAttr.from_list(type_, values) == constant
