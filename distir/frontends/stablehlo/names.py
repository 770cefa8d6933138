"""Derives scopes from the names that JAX gives to ops."""

from __future__ import annotations

import re

_WRAPPER = re.compile(r"^(\w+)\((.*)\)$")
_TRANSFORMS = frozenset(
    [
        "jit",
        "pjit",
        "jvp",
        "vmap",
        "transpose",
        "remat",
        "checkpoint",
        "rematted_computation",
        "closed_call",
        "custom_jvp",
        "custom_vjp",
        "custom_vjp_call",
        "custom_jvp_call",
        "shard_map",
        "while",
        "cond",
        "body",
        "scan",
        "branch",
    ]
)
"""
The words of JAX in an op's path that name transformations, not the user's modules.
"""


def scope_of_name(name: str) -> str:
    """
    Returns the scope of an op from its name in JAX. The scope has the names that the
    user or a library of modules gave: `jit(step)/jvp(Model)/Block_0/add` gives
    `Model.Block_0`. The last part of a name, the JAX primitive, is left out.
    """
    parts: list[str] = []
    for part in _split(name)[:-1]:
        inner = _inside(part)
        if inner:
            parts.append(inner)
    return ".".join(parts)


def _split(name: str) -> list[str]:
    """
    Returns the parts of `name`, which are separated by the slashes outside of
    parentheses.
    """
    parts, depth, start = [], 0, 0
    for place, char in enumerate(name):
        depth += (char == "(") - (char == ")")
        if char == "/" and depth <= 0:
            parts.append(name[start:place])
            start = place + 1
    return [*parts, name[start:]]


def _inside(part: str) -> str:
    """
    Returns the name inside of JAX's transformations: `Model` for
    `transpose(jvp(Model))`, and "" for `jit(step)`.
    """
    match = _WRAPPER.match(part)
    if match is None:
        plain = part.replace(" ", "_")
        known = plain in _TRANSFORMS or "->" in plain or "," in plain or ":" in plain
        return "" if known else re.sub(r"[^A-Za-z0-9_.\-]", "_", plain)
    word, inner = match.groups()
    if word in ("jit", "pjit"):
        return ""
    return _inside(inner) if word in _TRANSFORMS else ""
