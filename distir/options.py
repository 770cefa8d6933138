"""
Declares options once, as fields of a dataclass: name, type, default and help. The field is
the option of a pass and of a Python function; `tools/arguments/declared.py` makes the option
of a command from it, and `tools/arguments/typed_options.py` has its type.

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
"""The values of options that are off or on, by the names that searches have for them."""


@dataclass(frozen=True)
class Option:
    """
    The declaration of an option besides its name, type and default.

    - `help`: a sentence for users, in terms of the command line;
    - `metavar`: the name of its value in help texts; "" for the usual one;
    - `choices`: the values that it may have; any if there are none;
    - `separator`: of a list, what separates its items in one argument; "" if each item is
      an argument of its own;
    - `flag`: its name in the command line, without dashes; "" for that of the field. The
      flag `no-X` of an option that is on turns it off;
    - `kind`: what texts in the command line stand for, where the type does not tell: a name
      in `tools/arguments/declared.py`, such as `output_file`;
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
) -> Any:
    """Returns the field of a dataclass that is an option, as `Option` describes it."""
    declared = Option(help, metavar, choices, separator, flag, kind)
    return field(default=default, metadata={_DECLARED: declared})


def same_option(
    owner: type, name: str, *, default: Any = MISSING, **changes: Any
) -> Any:
    """
    Returns the field of a dataclass that is the option `name` of another one. `default` and
    `changes`, fields of `Option`, replace what is declared there.
    """
    found = _field(owner, name)
    default = found.default if default is MISSING else default
    declared = replace(found.metadata[_DECLARED], **changes)
    return field(default=default, metadata={_DECLARED: declared})


def values_of(
    owner: type, name: str, help: str, metavar: str = ",".join(SWITCH)
) -> Any:
    """
    Returns the field of a dataclass that holds the values of the option `name` of another
    one that a search tries; none by default. Those of an option that is on or off are the
    names in `SWITCH`.
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
    """Yields the options that a dataclass declares, in the order of its fields."""
    hints = get_type_hints(owner)
    for own in fields(owner):
        declared = own.metadata.get(_DECLARED)
        if declared is not None:
            yield DeclaredOption(own.name, hints[own.name], own.default, declared)
