"""Shardings as a StableHLO file has them: axes of a mesh by dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh, outermost first: their names and sizes."""


class Annotation(NamedTuple):
    """The text of a sharding ("" for none), and the value that has it, for messages."""

    what: str
    text: str


@dataclass(frozen=True)
class Sharding:
    """
    A sharding in a file. `dims` has for each dimension the axes that split it, major to
    minor; it is empty if no axis splits the tensor. `fixed` are the axes that it fixes:
    these split the dimensions in `dims` and no others, the rest are free.
    """

    dims: tuple[tuple[str, ...], ...]
    fixed: frozenset[str]
