"""
Names of ops and values for people and messages: source names, module paths (scopes) and
name hints.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from itertools import count

from xdsl.ir import Operation

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.registries import name_of
from distir.program.locations import line_of

_HINT = re.compile(r"(?!(?:_\d+)+$)[A-Za-z_$.-][\w$.-]*", re.ASCII)
"""
Matches a name that a value can keep when it is copied. With each copy, xDSL cuts an
underscore and a number off the end of the name. It refuses the copy if nothing is left.
"""


def name_hint(name: str) -> str | None:
    """
    Returns an SSA name hint for a value with the source name `name`: the name itself,
    or the valid characters of its last part, or None if nothing is left. A hint is only
    a label; `dist.name` holds the source name.
    """
    hint = name
    if not is_name_hint(hint):
        last = re.split("/|::", name)[-1]
        hint = re.sub(r"\W+", "_", last, flags=re.ASCII).strip("_")
        # Printers give names of digits alone to values without a name.
        if hint[:1].isdigit() and not hint.isdigit():
            hint = f"_{hint}"
    return hint if is_name_hint(hint) else None


def is_name_hint(name: str) -> bool:
    """Whether a value, and all its copies, can have `name` as their name hint."""
    return _HINT.fullmatch(name) is not None


def scope_of(op: Operation) -> str:
    """
    Returns the dotted path of the source module that an op came from; "" if the op has
    none.
    """
    return SCOPE.of(op.attributes) or ""


def describe(op: Operation) -> str:
    """
    Returns a text for messages about an op: its name, its first result, its scope
    (module path), and the line of its source code if the program has it (`loc(...)`).
    """
    text = name_of(op)
    if op.results and op.results[0].name_hint:
        text += f" %{op.results[0].name_hint}"
    scope, line = scope_of(op), line_of(op.location)
    where = " at ".join(filter(None, (f"in {scope}" if scope else "", line)))
    if not scope and line:
        where = f"at {line}"
    return f"{text} ({where})" if where else text


def unique_names(names: Iterable[str]) -> list[str]:
    """
    Returns the names in order. A repeated name gets a number as suffix, so that all
    names differ.
    """
    found: dict[str, None] = {}
    for name in names:
        own, count = name, 1
        while own in found:
            count += 1
            own = f"{name}_{count}"
        found[own] = None
    return list(found)


def free_name(taken: Container[str], name: str) -> str:
    """
    Returns `name` if it is not in `taken`, else `name` with the first free number at
    its end.
    """
    if name not in taken:
        return name
    return next(f"{name}_{n}" for n in count(1) if f"{name}_{n}" not in taken)
