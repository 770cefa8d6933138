"""Splits: the part of a tensor on which an op of the per-rank form works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase
from xdsl.utils.exceptions import VerifyException


class Split(NamedTuple):
    """
    A split of dimension `dim`. The elements of the dimension are dealt out to `parts`
    parts in turn, `run` consecutive elements at a time.
    """

    dim: int
    parts: int
    run: int


def splits_of(attr: ArrayAttr[DenseArrayBase[Any]] | None) -> tuple[Split, ...]:
    """
    Returns the splits in a list of `[dimension, parts, run]`, or an empty tuple if the
    list is absent. Raises VerifyException if an entry does not have three numbers.
    """
    entries = () if attr is None else attr.data
    if any(len(entry) != 3 for entry in entries):
        raise VerifyException(f"{attr}: a split is [dimension, parts, run]")
    return tuple(Split(*(int(v) for v in e.get_values())) for e in entries)


def shape_of_part(shape: Sequence[int], splits: Sequence[Split]) -> list[int] | None:
    """
    Returns the shape of one part of a tensor of shape `shape` after all `splits`.
    Returns None if a split does not divide its dimension evenly.
    """
    left = list(shape)
    for split in splits:
        fits = 0 <= split.dim < len(left) and split.parts >= 1 and split.run >= 1
        if not fits or left[split.dim] % (split.parts * split.run):
            return None
        left[split.dim] //= split.parts
    return left
