"""Types of command-line arguments. They raise what argparse reports as usage errors."""

from __future__ import annotations

from argparse import ArgumentTypeError
from math import isfinite


def positive_integer(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def non_negative_integer(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def non_negative_number(text: str) -> float:
    """A finite number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def positive_integers(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, between commas."""
    return tuple(positive_integer(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ArgumentTypeError(f"{text!r} is not a list of names between commas")
    return found


def dimension(text: str) -> tuple[str, int]:
    """`NAME=SIZE`, the size of a dynamic dimension."""
    name, equals, size = text.rpartition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=SIZE")
    return name, positive_integer(size)
