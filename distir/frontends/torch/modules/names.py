"""Names of the inputs and outputs of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leaf_names(structure: Any, default: str) -> list[str]:
    """
    Returns a name for each leaf of nested dictionaries, lists and tuples: its path, or
    `default` for a structure that is itself a leaf.
    """
    if isinstance(structure, Mapping):
        items = list(structure.items())
    elif isinstance(structure, list | tuple):
        items = list(enumerate(structure))
    else:
        return [default]
    names: list[str] = []
    for key, value in items:
        path = str(key) if isinstance(key, str) else f"{default}{key}"
        if isinstance(value, Mapping | list | tuple):
            names += [f"{path}.{inner}" for inner in leaf_names(value, "")]
        else:
            names.append(path)
    return names
