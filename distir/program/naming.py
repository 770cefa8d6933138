"""
Names of ops and values, as people and messages read them: source names, scopes, name hints.
"""

from __future__ import annotations

import re
from collections.abc import Container
from itertools import count

from xdsl.ir import Operation

from distir.dialects.dist_attributes import SCOPE

_HINT = re.compile(r"(?!(?:_\d+)+$)[A-Za-z_$.-][\w$.-]*", re.ASCII)
"""
A name that a value can keep. xDSL cuts `_` with a number off the end each time that a value
is copied, and refuses a copy of a name of which nothing is left.
"""


def name_hint(name: str) -> str | None:
    """
    Returns a name hint for an SSA value that has this name in the source model: the name
    itself, or as much of its last part as SSA names can have; None if nothing is left. A
    hint is only a label: the source name is `dist.name`.
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
    """Returns whether a value, and all its copies, can have a name as their hint."""
    return _HINT.fullmatch(name) is not None


def scope_of(op: Operation) -> str:
    """
    Returns the dotted path of the source module that an op came from; "" if there is none.
    """
    return SCOPE.of(op.attributes) or ""


def describe(op: Operation) -> str:
    """Returns an op as messages name it: its name, scope and first result."""
    text = op.name
    if op.results and op.results[0].name_hint:
        text += f" %{op.results[0].name_hint}"
    scope = scope_of(op)
    return f"{text} (in {scope})" if scope else text


def free_name(taken: Container[str], name: str) -> str:
    """Returns the name, followed by a number if it is taken."""
    if name not in taken:
        return name
    return next(f"{name}_{n}" for n in count(1) if f"{name}_{n}" not in taken)
