"""
Reads the JSON objects of a profile. An error names the field and its mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from distir.errors import DistIRError


class Table:
    """
    One JSON object of a profile. Each method reads one field, and raises DistIRError if
    the field's value is missing or wrong. `finish` refuses objects without a `source`,
    and fields that no method has read.
    """

    def __init__(self, owner: str, data: Any):
        if not isinstance(data, dict):
            raise DistIRError(f"{owner} must be a JSON object, not {_shown(data)}")
        self.owner = owner
        self._data: dict[str, Any] = {str(key): value for key, value in data.items()}
        self._asked: set[str] = set()

    def finish(self, sourced: bool = True) -> None:
        """
        Ends the reading of an object, after all of its fields have been read. Raises
        DistIRError for a field that was not read, and for a missing `source` if
        `sourced` is set.
        """
        if sourced:
            self.text("source")
        unknown = [key for key in self._data if key not in self._asked]
        if unknown:
            raise DistIRError(
                f"{self.owner} has a field {unknown[0]!r} that is not known; the fields "
                f"are {', '.join(sorted(self._asked))}"
            )

    def text(self, key: str) -> str:
        """
        Returns the text of field `key`. Raises DistIRError if the text is missing or
        empty.
        """
        value = self._value(key)
        if not isinstance(value, str) or not value.strip():
            raise self._error(key, value, "a text")
        return value

    def has(self, key: str) -> bool:
        """Whether the table has a field `key`."""
        return key in self._data

    def at_least_0(self, key: str, default: float | None = None) -> float:
        """
        Returns the number in field `key`, or `default` if the field is missing. Raises
        DistIRError unless the number is finite and not negative.
        """
        value = self._value(key, default)
        number = _number(value)
        if number is None or not (number >= 0 and math.isfinite(number)):
            raise self._error(key, value, "a finite number of at least 0")
        return number

    def below_1(self, key: str) -> float:
        """
        Returns the number in field `key`. Raises DistIRError unless the number is at
        least 0 and below 1.
        """
        share = self.at_least_0(key)
        if share >= 1:
            raise self._error(key, self._data[key], "a share of at least 0 and below 1")
        return share

    def positive(self, key: str, default: float | None = None) -> float:
        """
        Returns the number in field `key`, or `default` if the field is missing. Raises
        DistIRError unless the number is finite and above 0.
        """
        value = self._value(key, default)
        if value is default and default is not None:
            return default
        number = _number(value)
        if number is None or not (number > 0 and math.isfinite(number)):
            raise self._error(key, value, "a finite number above 0")
        return number

    def positive_by_size(self, key: str) -> float | dict[int, float]:
        """
        Returns the value of field `key`: a number above 0, or a map from numbers of
        devices to such numbers. Raises DistIRError for anything else.
        """
        value = self._value(key)
        if not isinstance(value, dict):
            return self.positive(key)
        sizes: dict[int, float] = {}
        shares = Table(f"{self.owner}, {key}", value)
        for size in shares._data:
            if not size.isdecimal() or int(size) < 2:
                raise DistIRError(
                    f"{shares.owner}: {size!r} is not a number of devices of at least 2"
                )
            sizes[int(size)] = shares.positive(size)
        if not sizes:
            raise self._error(key, value, "a number, or some by number of devices")
        return sizes

    def flag(self, key: str, default: bool) -> bool:
        """
        Returns the boolean in field `key`, or `default` if the field is missing. Raises
        DistIRError if the value is not a boolean.
        """
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._error(key, value, "true or false")
        return value

    def size(self, key: str, default: int) -> int:
        """
        Returns the integer in field `key`, or `default` if the field is missing. Raises
        DistIRError unless the integer is above 0.
        """
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._error(key, value, "a whole number above 0")
        return value

    def sizes(self, key: str, default: tuple[int, int]) -> tuple[int, int]:
        """
        Returns the two integers in field `key`, or `default` if the field is missing.
        Raises DistIRError unless both are above 0.
        """
        value: Any = self._value(key, list(default))
        if not isinstance(value, list) or len(value) != 2:
            raise self._error(key, value, "two whole numbers above 0")
        pair = Table(f"{self.owner}, {key}", {"0": value[0], "1": value[1]})
        return pair.size("0", 1), pair.size("1", 1)

    def choices(self, key: str, known: Sequence[str]) -> frozenset[str]:
        """
        Returns the words in field `key`, or no words if the field is missing. Raises
        DistIRError for a word that is not in `known`.
        """
        value: Any = self._value(key, [])
        if not isinstance(value, list) or any(word not in known for word in value):
            raise self._error(key, value, f"a list of some of {', '.join(known)}")
        return frozenset(value)

    def table(self, key: str) -> Table:
        """
        Returns the object in field `key`. Raises DistIRError if the field is missing or
        not an object.
        """
        return Table(f"{self.owner}, {key}", self._value(key))

    def optional(self, key: str) -> Table | None:
        """Returns the object in field `key`, or None if the field is missing."""
        if key not in self._data:
            self._asked.add(key)
            return None
        return self.table(key)

    def tables(self, key: str, required: bool = True) -> dict[str, Table]:
        """
        Returns the objects in the object of field `key`, by name; an empty result if
        the field is missing and not `required`. Raises DistIRError if the field is
        missing and `required`, or if a value is not an object.
        """
        if not required and key not in self._data:
            self._asked.add(key)
            return {}
        return self.table(key).all_tables()

    def all_tables(self) -> dict[str, Table]:
        """
        Returns the values of all fields, by name. Raises DistIRError if the value of a
        field is not an object.
        """
        return {key: self.table(key) for key in self._data}

    def _value(self, key: str, default: Any = None) -> Any:
        self._asked.add(key)
        if key not in self._data and default is None:
            raise DistIRError(f"{self.owner} has no field {key!r}; add it")
        return self._data.get(key, default)

    def _error(self, key: str, value: Any, expected: str) -> DistIRError:
        return DistIRError(
            f"{self.owner}: {key} must be {expected}, not {_shown(value)}"
        )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
