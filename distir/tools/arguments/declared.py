"""Options of commands that are declared once, as fields of a dataclass."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args

from distir.options import DeclaredOption
from distir.tools.arguments.types import positive_integer


def flag_of(name: str) -> str:
    """Returns the option of the command line for a field: `-t`, `--no-sync`."""
    return f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"


def default_of(option: DeclaredOption) -> Any:
    """Returns the value of an option that is not given, as commands parse it."""
    return [] if _kind(option.type) is tuple else option.default


def add_option(parser: ArgumentParser, option: DeclaredOption) -> None:
    """Declares an option of a command as its field is declared."""
    parser.add_argument(flag_of(option.name), **_settings(option))


def _settings(option: DeclaredOption) -> Mapping[str, Any]:
    """Returns the arguments of `add_argument` for an option, by its type."""
    own, kind = option.declared, _kind(option.type)
    settings: dict[str, Any] = {"help": own.help, "default": default_of(option)}
    if own.metavar:
        settings["metavar"] = own.metavar
    if own.choices:
        settings["choices"] = own.choices
    if kind is bool:
        is_on = bool(option.default)
        settings["action"] = BooleanOptionalAction if is_on else "store_true"
    elif kind is tuple:
        settings["action"] = "append"
        if own.separator:
            settings |= {"action": "extend", "type": _Separated(own.separator)}
    elif kind is int:
        settings["type"] = int if own.choices else positive_integer
    return settings


def _kind(type_: Any) -> type:
    """Returns `int` for `int | None`, and `tuple` for tuples of anything."""
    if isinstance(type_, UnionType):
        (type_,) = (part for part in get_args(type_) if part is not type(None))
    return getattr(type_, "__origin__", type_)


class _Separated:
    """Parses the items of a list that are in one argument."""

    def __init__(self, separator: str):
        self._separator = separator

    def __call__(self, text: str) -> list[str]:
        return text.split(self._separator)
