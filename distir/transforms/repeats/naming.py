"""
Names for a function that replaces several parts of a program, and for the values of the
function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist_attributes import NAME, OF
from distir.program import name_hint, scope_of
from distir.transforms.repeats.op_sequence import common_scope

VARYING = "*"
"""
The part of a name that stands for the numbers in which the calls of a function differ.
"""


def generalise(names: Sequence[str]) -> str | None:
    """
    Returns one name for several dotted names, with `*` for numbers in which the names
    differ: `h.*.attn` for `h.0.attn` and `h.1.attn`. Returns None if the names differ
    in anything but numbers.
    """
    split = [name.split(".") for name in names]
    if len({len(parts) for parts in split}) != 1:
        return None
    general: list[str] = []
    for parts in zip(*split, strict=True):
        if len(set(parts)) == 1:
            general.append(parts[0])
        elif all(part == VARYING or part.isdecimal() for part in parts):
            general.append(VARYING)
        else:
            return None
    return ".".join(general)


def specialise(scope: str, call_scope: str) -> str:
    """
    Returns the scope of an op in one call of its function: `h.3.attn` for the scope
    `h.*.attn` in a call with the scope `h.3`. The result lies inside the scope of the
    call, which is the innermost scope that contains all ops of the call.
    """
    parts = scope.split(".")
    inside = call_scope.split(".")
    for index, part in enumerate(inside):
        if index < len(parts) and parts[index] == VARYING:
            parts[index] = part
    return ".".join(parts) if parts[: len(inside)] == inside else call_scope


def general_scope(ops: Sequence[Operation]) -> str:
    """
    Returns the scope of an op in the new function, from the scopes of `ops`, which the
    op replaces.
    """
    scopes = [scope_of(op) for op in ops]
    general = generalise(scopes)
    # Ops from different modules only share the common part of their scopes.
    return ".".join(common_scope(list(ops))) if general is None else general


def general_hint(values: Sequence[SSAValue]) -> str | None:
    """
    Returns a name hint for all `values`, without the numbers in which their hints
    differ.
    """
    hints = [value.name_hint or "" for value in values]
    split = [re.split(r"([._]?\d+)", hint) for hint in hints]
    if len({tuple(parts[::2]) for parts in split}) == 1:
        columns = zip(*split, strict=True)
        hint = "".join(c[0] for c in columns if len(set(c)) == 1)
    else:
        shorter = {"".join(parts[::2]) for parts in split}
        hint = shorter.pop() if len(shorter) == 1 else ""
    return name_hint(hint)


def general_attributes(
    dictionaries: Sequence[dict[str, Attribute]],
) -> dict[str, Attribute]:
    """
    Returns the attributes for a parameter of a new function: the attributes that the
    parameter's arguments have in all calls. `dictionaries` has the attributes of the
    argument in each call.
    """
    first = dictionaries[0]
    common = {
        key: attribute
        for key, attribute in first.items()
        if key != OF and all(d.get(key) == attribute for d in dictionaries)
    }
    names = [d.get(NAME) for d in dictionaries]
    texts = [name.data for name in names if isinstance(name, StringAttr)]
    if len(texts) == len(names):
        name = generalise(texts)
        if name is not None:
            common[NAME] = NAME.attr(name)
    return common


def function_name(scopes: Sequence[str], taken: set[str]) -> str:
    """
    Returns a new name for a function, made of the common part of the scopes of its
    calls. Without a common part, the name is `repeat0`, `repeat1`, ... if there are
    several calls, and `between0`, ... if there is one. Names in `taken` are not used.
    """
    general = (generalise(scopes) or "").split(".")
    words = [part for part in general if part not in ("", VARYING)]
    name = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(words))
    if not name:
        name, first = "repeat" if len(scopes) > 1 else "between", 0
    else:
        first = 1
        if name[0].isdigit():
            name = f"_{name}"
        if name not in taken:
            return name
        name += "_"
    while f"{name}{first}" in taken:
        first += 1
    return f"{name}{first}"
