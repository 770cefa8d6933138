"""
The shardings in a StableHLO file: for each dimension of a value, the mesh axes that
split it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh, outermost first: their names and sizes."""


class Annotation(NamedTuple):
    """
    The sharding of a value as text ("" for no sharding), and the value's name for
    messages.
    """

    what: str
    text: str


@dataclass(frozen=True)
class Sharding:
    """
    A sharding in a file. `dims` has for each dimension the axes that split the
    dimension, major to minor; it is empty if no axis splits the tensor. `fixed` are the
    axes for which the sharding is binding: they split exactly the dimensions in `dims`.
    All other axes may also split other dimensions.
    """

    dims: tuple[tuple[str, ...], ...]
    fixed: frozenset[str]
