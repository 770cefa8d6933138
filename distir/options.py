"""
Declares each option once, as a field of a dataclass, with its name, type, default and
help.

The field is an option of a pass and of a Python function. `tools/arguments/declared.py`
makes the option of a command from it, and `tools/arguments/typed_options.py` holds its
type for type checkers.

```python
@dataclass(frozen=True)
class StepOptions:
    zero: int = option(0, "ZeRO stage of a training step", choices=(0, 1, 2, 3))

@dataclass(frozen=True)
class StepSearch:
    zero: tuple[int, ...] = values_of(StepOptions, "zero", "ZeRO stages to try")
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, get_type_hints

_DECLARED = "distir.option"

SWITCH = {"off": False, "on": True}
"""
The values of an option that is either off or on. The keys are the names of these values
in the options of searches.
"""


@dataclass(frozen=True)
class Option:
    """
    The declaration of an option, apart from its name, type and default.

    - `help`: a sentence for users, in terms of the command line;
    - `metavar`: the placeholder for the value in help texts; "" for the default
      placeholder;
    - `choices`: the allowed values; if empty, any value is allowed;
    - `separator`: for a list, the text between its items in one argument; "" if each
      item is a separate argument;
    - `flag`: the option's name in the command line, without dashes; "" for the name of
      the field. If the option is on by default, the flag `no-X` turns it off;
    - `kind`: the parser of the command-line text, if the type does not determine it: a
      name in `tools/arguments/declared.py`, such as `output_file`;
    - `several`: whether one argument holds all items of a list, separated by commas.
    """

    help: str
    metavar: str = ""
    choices: Sequence[Any] = ()
    separator: str = ""
    flag: str = ""
    kind: str = ""
    several: bool = False


def option(
    default: Any,
    help: str,
    *,
    metavar: str = "",
    choices: Sequence[Any] = (),
    separator: str = "",
    flag: str = "",
    kind: str = "",
    several: bool = False,
) -> Any:
    """
    Returns a dataclass field that declares an option. The parameters other than
    `default` are the fields of `Option`.
    """
    declared = Option(help, metavar, choices, separator, flag, kind, several)
    return field(default=default, metadata={_DECLARED: declared})


def same_option(
    owner: type, name: str, *, default: Any = MISSING, **changes: Any
) -> Any:
    """
    Returns a dataclass field that declares the same option as the field `name` of the
    dataclass `owner`. `default`, if given, replaces the default, and each entry of
    `changes` replaces the field of `Option` with that name.
    """
    found = _field(owner, name)
    default = found.default if default is MISSING else default
    declared = replace(found.metadata[_DECLARED], **changes)
    return field(default=default, metadata={_DECLARED: declared})


def values_of(
    owner: type, name: str, help: str, metavar: str = ",".join(SWITCH)
) -> Any:
    """
    Returns a dataclass field that declares the list of values that a search tries for
    one option: the option that the field `name` of the dataclass `owner` declares. The
    list is empty by default. For an option that is off or on, the values are the names
    in `SWITCH`.
    """
    found = _field(owner, name)
    is_switch = isinstance(found.default, bool)
    choices = tuple(SWITCH) if is_switch else found.metadata[_DECLARED].choices
    declared = Option(help, metavar, choices, ",", several=True)
    return field(default=(), metadata={_DECLARED: declared})


def _field(owner: type, name: str) -> Any:
    return next(own for own in fields(owner) if own.name == name)


@dataclass(frozen=True)
class DeclaredOption:
    """An option with its name, type and default."""

    name: str
    type: Any
    default: Any
    declared: Option


def options_of(owner: type) -> Iterator[DeclaredOption]:
    """
    Yields the options that the dataclass `owner` declares, in the order of its fields.
    """
    hints = get_type_hints(owner)
    for own in fields(owner):
        declared = own.metadata.get(_DECLARED)
        if declared is not None:
            yield DeclaredOption(own.name, hints[own.name], own.default, declared)
