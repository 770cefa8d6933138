"""Options of commands that are declared once, as fields of a dataclass."""

from __future__ import annotations

from argparse import ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from distir.options import DeclaredOption, options_of
from distir.tools.arguments.types import (
    input_file,
    names,
    non_negative_integer,
    non_negative_number,
    output_file,
    positive_integer,
    positive_integers,
)

_KINDS: Mapping[str, Callable[[str], Any]] = {
    "input_file": input_file,
    "integer": int,
    "non_negative_integer": non_negative_integer,
    "output_file": output_file,
    "path": Path,
}
"""What texts stand for, by the `kind` of an option."""


def flag_of(option: DeclaredOption) -> str:
    """Returns an option as the command line has it: `-t`, `--no-sync`."""
    name = option.declared.flag or option.name.replace("_", "-")
    return f"--{name}" if len(name) > 1 else f"-{name}"


def default_of(option: DeclaredOption) -> Any:
    """Returns the value of an option that is not given, as commands parse it."""
    is_list = _type(option.type) is tuple and not option.declared.several
    return [] if is_list and not option.default else option.default


def add_option(
    parser: Any, option: DeclaredOption, *, optional: bool = False, **settings: Any
) -> None:
    """
    Declares an option of a command as its field is declared, on a parser or a group of one.
    The value of an option that is not given is its default, or None if it is `optional`.
    `settings` of `add_argument` replace what is declared.
    """
    own = _settings(option)
    if optional:
        own["default"] = None
    flags = [flag_of(option)]
    parser.add_argument(*flags, **own | settings)


def add_options(
    parser: Any,
    owner: type,
    names: Collection[str] = (),
    *,
    optional: bool = False,
    **settings: Any,
) -> None:
    """
    Declares the options of a command that a dataclass declares: those with these names, in
    their order, or all. `optional` and `settings` are as in `add_option`.
    """
    declared = {option.name: option for option in options_of(owner)}
    for name in names or declared:
        add_option(parser, declared[name], optional=optional, **settings)


def _settings(option: DeclaredOption) -> dict[str, Any]:
    """Returns the arguments of `add_argument` for an option, by its type."""
    own, type_ = option.declared, _type(option.type)
    settings: dict[str, Any] = {"help": own.help, "default": default_of(option)}
    if own.metavar:
        settings["metavar"] = own.metavar
    if own.several:
        return settings | {"type": _values(option)}
    if own.choices:
        settings["choices"] = own.choices
    if own.flag:
        settings["dest"] = option.name
    if own.kind:
        settings["type"] = _KINDS[own.kind]
    if type_ is bool:
        is_on = bool(option.default)
        settings["action"] = BooleanOptionalAction if is_on else "store_true"
        if own.flag.startswith("no-"):
            settings["action"] = "store_false"
    elif type_ is tuple:
        settings["action"] = "append"
        if own.separator:
            settings |= {"action": "extend", "type": _Separated(own.separator)}
    elif own.kind:
        pass
    elif type_ is int:
        settings["type"] = int if own.choices else positive_integer
    elif type_ is float:
        settings["type"] = non_negative_number
    return settings


def _type(type_: Any) -> type:
    """Returns `int` for `int | None`, and `tuple` for tuples of anything."""
    if isinstance(type_, UnionType):
        (type_,) = (part for part in get_args(type_) if part is not type(None))
    return getattr(type_, "__origin__", type_)


def _values(option: DeclaredOption) -> Callable[[str], Any]:
    """Returns a parser of the values of an option, separated by commas."""
    if get_args(option.type)[0] is not int:
        return names
    choices = option.declared.choices
    return _ChosenNumbers(choices) if choices else positive_integers


class _ChosenNumbers:
    """Parses numbers among those to choose from, separated by commas."""

    def __init__(self, choices: Sequence[int]):
        self._choices = choices

    def __call__(self, text: str) -> tuple[int, ...]:
        known = {str(choice): choice for choice in self._choices}
        if any(part not in known for part in text.split(",")):
            raise ArgumentTypeError(
                f"{text!r} is not a list of numbers among {','.join(known)}"
            )
        return tuple(known[part] for part in text.split(","))


class _Separated:
    """Parses the items of a list that are in one argument."""

    def __init__(self, separator: str):
        self._separator = separator

    def __call__(self, text: str) -> list[str]:
        return text.split(self._separator)
