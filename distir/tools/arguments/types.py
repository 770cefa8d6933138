"""
Functions that parse the arguments of several commands. For invalid text they raise
ArgumentTypeError, which argparse reports as a usage error.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from math import isfinite
from pathlib import Path


def output_file(text: str) -> Path:
    """
    Parses the path of a file that a command will write. Raises an error, before the
    work starts, if the folder of the file does not exist or if the path is itself a
    folder.
    """
    path = _output(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder; give the name of a file in it")
    return path


def output_file_of(suffix: str) -> Callable[[str], Path]:
    """
    Returns a function that parses the path of an output file whose name ends in
    `suffix`.
    """

    def parse(text: str) -> Path:
        path = output_file(text)
        if path.suffix != suffix:
            raise ArgumentTypeError(
                f"the name of this file has to end in {suffix}, as in "
                f"{path.with_suffix(suffix)}"
            )
        return path

    return parse


_NO_PROGRAMS = (".onnx", ".safetensors", ".py", ".json", ".npz")
"""The suffixes of files that cannot be programs."""


def output_program(text: str) -> Path:
    """Parses the path of a program or a cluster that a command will write."""
    path = output_file(text)
    if path.suffix in _NO_PROGRAMS:
        raise ArgumentTypeError(
            f"the output is text of MLIR, not {path.suffix}: give {path.with_suffix('.mlir')}"
        )
    return path


def output_folder(text: str) -> Path:
    """Parses the path of a folder that a command will make or write to."""
    path = _output(text)
    if path.exists() and not path.is_dir():
        raise ArgumentTypeError(f"{path} is a file; give the name of a folder")
    return path


def _output(text: str) -> Path:
    path = Path(text)
    if not text:
        raise ArgumentTypeError("a name is wanted, and '' is none")
    if not path.absolute().parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}, so make it first")
    return path


def input_file(text: str) -> Path:
    """Parses the path of an existing file that a command will read."""
    path = Path(text)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file"
        raise ArgumentTypeError(f"{text} {what}; give the path of a file")
    return path


def positive_integer(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def non_negative_integer(text: str) -> int:
    """Parses a whole number of at least 0."""
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def non_negative_number(text: str) -> float:
    """Parses a finite number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def at_least_one(text: str) -> float:
    """Parses a number of at least 1, which may be infinite."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number >= 1:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return number


def positive_number(text: str) -> float:
    """Parses a positive number."""
    number = _positive(text)
    if number is None:
        raise ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def positive_integers(text: str) -> tuple[int, ...]:
    """Parses whole numbers of at least 1, separated by commas."""
    return tuple(positive_integer(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Parses names separated by commas."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ArgumentTypeError(f"{text!r} is not a list of names between commas")
    return found


_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""The factor for each decimal prefix of a unit, such as 1000 for `k`."""


def rate(text: str) -> float:
    """
    Parses the bandwidth of a link, in bits or bytes per second: `200Gb/s`, `25GB/s`.
    Returns bytes per second.
    """
    found = re.fullmatch(r"([0-9.]+) ?([kMGT]?)(b|B|bit|bits)(/s|ps)", text)
    number = _positive(found[1]) if found is not None else None
    if found is None or number is None:
        raise ArgumentTypeError(
            f"{text!r} is not a rate in bits or bytes a second, such as 200Gb/s or 25GB/s"
        )
    return number * _SCALES[found[2]] / (1 if found[3] == "B" else 8)


def duration(text: str) -> float:
    """Parses a time, such as `1s`, `400ms` or `0.4` (seconds). Returns seconds."""
    found = re.fullmatch(r"([0-9.]+) ?(us|ms|s|)", text)
    number = _positive(found[1]) if found is not None else None
    if found is None or number is None:
        raise ArgumentTypeError(f"{text!r} is not a time, such as 1s or 40ms")
    return number * {"us": 1e-6, "ms": 1e-3}.get(found[2], 1.0)


def requests_per_second(text: str) -> float:
    """Parses a rate of requests, such as `12/s` or `12`."""
    number = _positive(text.removesuffix("/s"))
    if number is None:
        raise ArgumentTypeError(f"{text!r} is not a rate of requests, such as 12/s")
    return number


def share(text: str) -> float:
    """Parses a number from 0 to 1, or a percentage such as `90%`."""
    percent = text.endswith("%")
    try:
        number = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"{text!r} is not a share from 0 to 1, such as 0.9")
    return number


_FEWEST_BYTES = 1_000_000
"""
The smallest accepted memory size in bytes. In a smaller one the unit was forgotten.
"""


def number_of_bytes(text: str) -> int:
    """
    Parses a memory size with a decimal or binary unit: `80GB`, `40GiB`, `32e9`. Returns
    bytes.
    """
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?) ?([kMGT]?)(i?)B?", text)
    number = _positive(found[1]) if found is not None else None
    if found is None or number is None or (found[3] and not found[2]):
        raise ArgumentTypeError(
            f"{text!r} is not a number of bytes, such as 80GB or 40GiB"
        )
    scale = _SCALES[found[2]]
    if found[3]:
        scale = 1024.0 ** list(_SCALES).index(found[2])
    count = round(number * scale)
    if count < _FEWEST_BYTES:
        raise ArgumentTypeError(
            f"{text!r} is {count} bytes, less than any device has; say of what, such as "
            f"{found[1]}GB"
        )
    return count


def _positive(text: str) -> float | None:
    """Returns the finite positive number in `text`, or None if `text` is not one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number > 0 else None


def dimension(text: str) -> tuple[str, int]:
    """Parses `NAME=SIZE`, the size of a dynamic dimension."""
    name, equals, size = text.rpartition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=SIZE")
    return name, positive_integer(size)


def named_number(text: str) -> tuple[str, float]:
    """
    Parses `NAME=NUMBER`, the value of an input. The number may also be `true` or
    `false`.
    """
    name, equals, number = text.rpartition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=NUMBER")
    number = {"true": "1", "false": "0"}.get(number.lower(), number)
    try:
        return name, int(number) if number.lstrip("+-").isdecimal() else float(number)
    except ValueError:
        raise ArgumentTypeError(f"{number!r} in {text!r} is no number") from None
