"""
Atoms: the parts of dimensions of which it is found, op by op, that they are the same factor.
"""

from __future__ import annotations

from collections.abc import Sequence


class Atoms:
    """
    Atoms by number: which others they are unified with, or what they are divided into.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.kept: set[int] = set()
        self._same: dict[int, int] = {}
        self._parts: dict[int, list[int]] = {}

    def new(self, size: int, *, kept: bool = False) -> list[int]:
        """Returns a new atom; none for a dimension of one element."""
        if size == 1:
            return []
        self.sizes.append(size)
        if kept:
            self.kept.add(len(self.sizes) - 1)
        return [len(self.sizes) - 1]

    def found(self, atoms: Sequence[int]) -> list[int]:
        """
        Returns the atoms that unifications and splits have put in place of some atoms, major
        to minor.
        """
        out: list[int] = []
        for atom in atoms:
            while atom in self._same:
                atom = self._same[atom]
            out += self.found(self._parts[atom]) if atom in self._parts else [atom]
        return out

    def keep(self, atoms: Sequence[int]) -> None:
        """Marks atoms that cannot be split."""
        self.kept.update(self.found(atoms))

    def join(self, first: Sequence[int], second: Sequence[int]) -> None:
        """Unifies two lists of atoms."""
        while True:
            a, b = self.found(first), self.found(second)
            while a and b and a[-1] == b[-1]:
                a, b = a[:-1], b[:-1]
            if not a or not b:
                return self.keep([*a, *b])
            x, y = a[-1], b[-1]
            small, large = sorted((x, y), key=lambda atom: self.sizes[atom])
            if self.sizes[small] == self.sizes[large]:
                self._same[large] = small
                if large in self.kept:
                    self.kept.add(small)
            elif self.sizes[large] % self.sizes[small] == 0:
                kept = large in self.kept
                outer = self.new(self.sizes[large] // self.sizes[small], kept=kept)
                self._parts[large] = [*outer, small]
                if kept:
                    self.kept.add(small)
            else:
                return self.keep([*a, *b])
