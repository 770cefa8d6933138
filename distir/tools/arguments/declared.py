"""Adds command-line options that are declared as fields of a dataclass."""

from __future__ import annotations

from argparse import ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from distir.options import DeclaredOption, options_of
from distir.tools.arguments.types import (
    at_least_one,
    duration,
    input_file,
    names,
    non_negative_integer,
    non_negative_number,
    output_file,
    positive_integer,
    positive_integers,
    requests_per_second,
    share,
)

_KINDS: Mapping[str, Callable[[str], Any]] = {
    "at_least_one": at_least_one,
    "input_file": input_file,
    "duration": duration,
    "integer": int,
    "non_negative_integer": non_negative_integer,
    "output_file": output_file,
    "path": Path,
    "requests_per_second": requests_per_second,
    "share": share,
}
"""The function that parses an option's text, by the `kind` of the option."""


def flag_of(option: DeclaredOption) -> str:
    """
    Returns the spelling of an option on the command line, such as `-t` or `--no-sync`.
    """
    name = option.declared.flag or option.name.replace("_", "-")
    return f"--{name}" if len(name) > 1 else f"-{name}"


def default_of(option: DeclaredOption) -> Any:
    """Returns the parsed value of an option that the user leaves out."""
    is_list = _type(option.type) is tuple and not option.declared.several
    return [] if is_list and not option.default else option.default


def add_option(
    parser: Any, option: DeclaredOption, *, optional: bool = False, **settings: Any
) -> None:
    """
    Adds `option` to `parser`, a parser or an argument group, as its field declares it.
    If the user leaves the option out, its value is its default, or None if `optional`
    is True. `settings` are arguments of `add_argument` that replace the declared ones.
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
    Adds options that the dataclass `owner` declares to `parser`. `names` selects the
    options and their order; if it is empty, all options are added. `optional` makes
    None the value of options that the user leaves out. `settings` are arguments of
    `add_argument` that replace the declared ones.
    """
    declared = {option.name: option for option in options_of(owner)}
    for name in names or declared:
        add_option(parser, declared[name], optional=optional, **settings)


def _settings(option: DeclaredOption) -> dict[str, Any]:
    """
    Returns the arguments of `add_argument` for an option. These arguments depend on the
    option's type.
    """
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
    """
    Returns the class behind a type: `int` for `int | None`, `tuple` for any type of
    tuple.
    """
    if isinstance(type_, UnionType):
        (type_,) = (part for part in get_args(type_) if part is not type(None))
    return getattr(type_, "__origin__", type_)


def _values(option: DeclaredOption) -> Callable[[str], Any]:
    """Returns a function that parses the comma-separated values of an option."""
    if get_args(option.type)[0] is not int:
        return names
    choices = option.declared.choices
    return _ChosenNumbers(choices) if choices else positive_integers


class _ChosenNumbers:
    """
    Parses comma-separated numbers, each of which must be one of the option's choices.
    """

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
    """Splits the text of one argument into a list at a separator."""

    def __init__(self, separator: str):
        self._separator = separator

    def __call__(self, text: str) -> list[str]:
        return text.split(self._separator)
