"""
Declares options once, as fields of a dataclass: name, type, default and help. The field is
the option of a pass and of a Python function, and `tools/arguments/declared.py` makes the
option of a command from it.

```python
@dataclass(frozen=True)
class StepOptions:
    zero: int = option(0, "ZeRO stage of a training step", choices=(0, 1, 2, 3))
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

_DECLARED = "distir.option"


@dataclass(frozen=True)
class Option:
    """
    The declaration of an option besides its name, type and default.

    - `help`: a sentence for users, in terms of the command line;
    - `metavar`: the name of its value in help texts; "" for the usual one;
    - `choices`: the values that it may have; any if there are none;
    - `separator`: of a list, what separates its items in one argument; "" if each item is
      an argument of its own.
    """

    help: str
    metavar: str = ""
    choices: Sequence[Any] = ()
    separator: str = ""


def option(
    default: Any,
    help: str,
    *,
    metavar: str = "",
    choices: Sequence[Any] = (),
    separator: str = "",
) -> Any:
    """Returns the field of a dataclass that is an option, as `Option` describes it."""
    declared = Option(help, metavar, choices, separator)
    return field(default=default, metadata={_DECLARED: declared})


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
