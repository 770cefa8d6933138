"""
Tables of a training system's options. A row gives the setting of an option, the
spelling of its values, and its default. Reading and writing use the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from distir.errors import DistIRError, did_you_mean
from distir.exports.systems.settings import RunSettings


@dataclass(frozen=True)
class Row:
    """
    An option of a training system that corresponds to one setting.

    - `fact`: the name of the setting;
    - `key`: the option's name, a path of keys in a file;
    - `default`: the value of the setting if the option is left out. None: the option
      must be given, or a rule decides;
    - `values`: maps each value of the option to the value of the setting, if the two
      values differ. A switch has the key True, and may have False;
    - `aliases`: names of the option in other versions;
    - `always`: whether the option is written even if it has its default.
    """

    fact: str
    key: str
    default: Any = None
    values: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    aliases: tuple[str, ...] = ()
    always: bool = False

    @property
    def kind(self) -> type:
        """The type of the setting."""
        return type(getattr(RunSettings(), self.fact))

    @property
    def is_switch(self) -> bool:
        """Whether the option is a switch, which is on or off."""
        return True in self.values or (not self.values and self.kind is bool)

    def read(self, value: Any, where: str) -> Any:
        """
        Returns the setting for `value`, the option's value as text or as an object from
        a file. Raises DistIRError, with a message that begins with `where`, for a value
        that the option cannot have.
        """
        if self.is_switch:
            truth = _boolean(value)
            if truth is None:
                raise DistIRError(f"{where} is on or off, not {value!r}")
            return self.values.get(truth, self.default) if self.values else truth
        if self.values:
            if value in self.values:
                return self.values[value]
            known = {str(name).lower(): found for name, found in self.values.items()}
            if str(value).lower() in known:
                return known[str(value).lower()]
            names = ", ".join(map(str, self.values))
            raise DistIRError(f"{where} cannot be {value!r}; DistIR knows {names}")
        if self.kind is str:
            return str(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(value, bool):
            raise DistIRError(f"{where} wants a number, not {str(value)!r}")
        if self.kind is float:
            return number
        if not number.is_integer():
            raise DistIRError(f"{where} wants a whole number, not {str(value)!r}")
        return int(number)

    def write(self, setting: Any) -> Any:
        """
        Returns the option's value for `setting`, or None if no value of the option
        gives this setting.
        """
        if self.is_switch and not self.values:
            return bool(setting)
        if self.values:
            found = [v for v, fact in self.values.items() if fact == setting]
            return found[0] if found else None
        return setting


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "on": True, "yes": True, "": True, "none": False,
            "false": False, "0": False, "off": False, "no": False}.get(str(value).lower())  # fmt: skip


Values = Mapping[str, Any]
"""The options of a system, by name, with their values."""


@dataclass(frozen=True)
class OptionRule:
    """
    Options that give settings only in combination, or whose meaning depends on other
    settings.

    - `options`: the names of the options, with their default values;
    - `facts`: the names of the settings that the rule determines;
    - `read`: takes the options' values and the settings known so far; returns the
      settings of the rule. Raises DistIRError, which names an option, for values that
      are not supported;
    - `write`: takes all settings and returns the options for them. Raises DistIRError
      if the system has no such options.
    """

    options: Mapping[str, Any]
    facts: tuple[str, ...]
    read: Callable[[Values, RunSettings], Mapping[str, Any]]
    write: Callable[[RunSettings], Mapping[str, Any]]


@dataclass(frozen=True)
class OptionTable:
    """
    The options of a training system.

    - `rows`, `rules`: the options that give settings;
    - `harmless`: patterns (with `*`) of options that affect neither time nor memory, or
      only work outside of the program; they are kept for writing and listed for the
      user;
    - `refused`: patterns (with `*`) of options that DistIR cannot predict, with the
      reason;
    - `source`: the source of the names, types and defaults, with the version.
    """

    rows: tuple[Row, ...]
    rules: tuple[OptionRule, ...]
    harmless: tuple[str, ...]
    refused: Mapping[str, str]
    source: str

    def named(self) -> dict[str, Row]:
        """Returns the rows by the names and aliases of their options."""
        return {name: row for row in self.rows for name in (row.key, *row.aliases)}

    def of_rules(self) -> set[str]:
        """Returns the names of the options that rules read."""
        return {name for rule in self.rules for name in rule.options}

    def is_harmless(self, name: str) -> bool:
        """Whether the option `name` changes neither time nor memory."""
        return any(fnmatchcase(name, pattern) for pattern in self.harmless)

    def refusal(self, name: str) -> str:
        """
        Returns the reason why DistIR cannot predict an option, or "" if DistIR can.
        """
        found = [why for p, why in self.refused.items() if fnmatchcase(name, p)]
        return found[0] if found else ""

    def suggestion(self, name: str) -> str:
        """
        Returns a "did you mean" question with an option of a similar name, or "" if
        there is no such option.
        """
        return did_you_mean(name, [*self.named(), *self.of_rules()])
