"""
Derives the sharding rule of a kernel's reference from the rules of its ops.

Every dimension of every value is a list of *atoms*, major to minor. The rule of an op
tells which dimensions share a factor; the atoms of these dimensions are unified. If one
side is finer (a reshape), the atoms of the other side are divided. Atoms that an op
cannot split stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from xdsl.ir import Block, SSAValue

from distir.dialects.tensors import shape_of
from distir.sharding.kernel_parts import proved
from distir.sharding.kernel_rule import KernelRule, NamedDim, NamedDims
from distir.sharding.rule import Dim, rule_for


class Atoms:
    """
    The atoms, factors of dimensions, identified by integers. Each atom is independent,
    unified with another atom, or divided into smaller ones.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.kept: set[int] = set()
        self._same: dict[int, int] = {}
        self._parts: dict[int, list[int]] = {}

    def new(self, size: int, *, kept: bool = False) -> list[int]:
        """
        Returns a list with one new atom (a factor of a dimension) of `size` elements,
        or an empty list if `size` is 1. With `kept`, the atom cannot be split.
        """
        if size == 1:
            return []
        self.sizes.append(size)
        if kept:
            self.kept.add(len(self.sizes) - 1)
        return [len(self.sizes) - 1]

    def found(self, atoms: Sequence[int]) -> list[int]:
        """
        Returns the atoms (factors of a dimension) that replace `atoms` after all
        unifications and divisions, major to minor.
        """
        out: list[int] = []
        for atom in atoms:
            while atom in self._same:
                atom = self._same[atom]
            out += self.found(self._parts[atom]) if atom in self._parts else [atom]
        return out

    def keep(self, atoms: Sequence[int]) -> None:
        """Marks `atoms`, factors of a dimension, as factors that cannot be split."""
        self.kept.update(self.found(atoms))

    def join(self, first: Sequence[int], second: Sequence[int]) -> None:
        """
        Unifies two lists of atoms (factors) that describe the same dimension. A larger
        atom is divided if its size is a multiple of the smaller one's; atoms that
        cannot be matched stay whole.
        """
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


def propagated_rule(block: Block) -> KernelRule:
    """
    Returns the sharding rule of a reference. It allows the splits that follow from the
    rules of the reference's ops and that `kernel_parts` proves.
    """
    atoms = Atoms()
    dims: dict[SSAValue, list[list[int]]] = {
        arg: [atoms.new(size) for size in shape_of(arg.type)] for arg in block.args
    }
    end = block.last_op
    assert end is not None
    for op in block.ops:
        if op is end:
            break
        rule = rule_for(op)
        own = [
            atoms.new(f.size, kept=f.kind == "replicate" or i in rule.decomposed)
            for i, f in enumerate(rule.factors)
        ]
        for value, mine in zip(
            op.operands, _dims(rule.operands, op.operands), strict=True
        ):
            for place, dim in zip(dims[value], mine, strict=True):
                atoms.join(place, [a for factor in dim for a in own[factor]])
        for value, mine in zip(
            op.results, _dims(rule.results, op.results), strict=True
        ):
            dims[value] = []
            for size, dim in zip(shape_of(value.type), mine, strict=True):
                there = [a for factor in dim for a in own[factor]]
                dims[value].append(there or atoms.new(size, kept=True))
    inputs = [[atoms.found(dim) for dim in dims[arg]] for arg in block.args]
    outputs = [[atoms.found(dim) for dim in dims[value]] for value in end.operands]
    twice = {
        atom
        for tensor in (*inputs, *outputs)
        for atom in _repeated([a for dim in tensor for a in dim])
    }
    known = {a for tensor in inputs for dim in tensor for a in dim} - twice
    names: dict[int, str] = {}

    def named(dim: Sequence[int]) -> NamedDim:
        out: list[str | int] = []
        for atom in dim:
            if atom in known and atom not in atoms.kept:
                out.append(names.setdefault(atom, _name(len(names))))
            else:
                out.append(atoms.sizes[atom])
        return tuple(out)

    def side(tensors: Sequence[Sequence[Sequence[int]]]) -> tuple[NamedDims, ...]:
        return tuple(tuple(named(dim) for dim in tensor) for tensor in tensors)

    return proved(block, KernelRule(side(inputs), side(outputs)))


def _dims(
    tensors: Sequence[tuple[Dim, ...]], values: Sequence[SSAValue]
) -> Sequence[tuple[Dim, ...]]:
    """
    Returns the dimensions of `values` in a rule. A value whose rank differs from the
    rule's has dimensions without factors.
    """
    return [
        mine
        if len(mine) == len(shape_of(value.type))
        else ((),) * len(shape_of(value.type))
        for mine, value in zip(tensors, values, strict=True)
    ]


def _repeated(atoms: Sequence[int]) -> set[int]:
    return {atom for i, atom in enumerate(atoms) if atom in atoms[:i]}


def _name(number: int) -> str:
    letter = ascii_lowercase[number % 26]
    return letter if number < 26 else f"{letter}{number // 26}"
