"""
Tables of a system's options. A row says which setting an option stands for, how its values
are written and what it is if it is left out. The same row reads and writes it.
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
    An option of a system.

    - `fact`: the name of the setting;
    - `key`: the option's name, a path of names in a file;
    - `default`: the setting's value if the option is left out, as Python value of the
      setting. None: the option has to be given, or a rule decides;
    - `values`: the option's values and the settings that they stand for, if they are not
      written alike. A switch has the key True, and False for its opposite;
    - `aliases`: other names of the option, of other versions;
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
        """The type of the setting's values."""
        return type(getattr(RunSettings(), self.fact))

    @property
    def is_switch(self) -> bool:
        """Whether the option is either there or not."""
        return True in self.values or (not self.values and self.kind is bool)

    def read(self, value: Any, where: str) -> Any:
        """
        Returns the setting for an option's value, a text or a value of a file. Raises
        DistIRError, which begins with `where`, for any other value.
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
        Returns the option's value for a setting, or None if it has none, as an option that
        is left out.
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
"""Options of a system with their values."""


@dataclass(frozen=True)
class OptionRule:
    """
    Options that say settings only together, or whose meaning depends on other settings.

    - `options`: their names, and their values if they are left out;
    - `facts`: the names of the settings that they decide;
    - `read`: takes their values, and the settings that are known so far, and returns the
      settings that they decide. It raises DistIRError with the name of an option;
    - `write`: takes all settings and returns the options that say them. It raises
      DistIRError if the system cannot say them.
    """

    options: Mapping[str, Any]
    facts: tuple[str, ...]
    read: Callable[[Values, RunSettings], Mapping[str, Any]]
    write: Callable[[RunSettings], Mapping[str, Any]]


@dataclass(frozen=True)
class OptionTable:
    """
    The options of a system.

    - `rows`, `rules`: those that stand for settings;
    - `harmless`: names, with `*`, of options that change neither time nor memory, or
      nothing that a program says: they are kept and listed;
    - `refused`: names, with `*`, of options that DistIR cannot predict, and the reason;
    - `source`: where names, types and defaults are from, with the version.
    """

    rows: tuple[Row, ...]
    rules: tuple[OptionRule, ...]
    harmless: tuple[str, ...]
    refused: Mapping[str, str]
    source: str

    def named(self) -> dict[str, Row]:
        """Returns the rows by all names of their options."""
        return {name: row for row in self.rows for name in (row.key, *row.aliases)}

    def of_rules(self) -> set[str]:
        """Returns the names of the options that rules read."""
        return {name for rule in self.rules for name in rule.options}

    def is_harmless(self, name: str) -> bool:
        """Whether an option changes neither time nor memory."""
        return any(fnmatchcase(name, pattern) for pattern in self.harmless)

    def refusal(self, name: str) -> str:
        """Returns why DistIR cannot predict an option, or an empty text."""
        found = [why for p, why in self.refused.items() if fnmatchcase(name, p)]
        return found[0] if found else ""

    def suggestion(self, name: str) -> str:
        """Returns a question for a similar option, or an empty text."""
        return did_you_mean(name, [*self.named(), *self.of_rules()])
