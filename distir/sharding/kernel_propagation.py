"""
The sharding rule of a reference, from those of its ops.

Every dimension of every value is a list of *atoms*, major to minor. The rule of an op says
which dimensions are the same factor: their atoms are unified, and where one side is finer
(a reshape), the atoms of the other are divided. What an op cannot split stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from xdsl.ir import Block, SSAValue

from distir.dialects.tensors import shape_of
from distir.sharding.atoms import Atoms
from distir.sharding.kernel_parts import proved
from distir.sharding.kernel_rule import KernelRule, NamedDim, NamedDims
from distir.sharding.rule import Dim, rule_for


def propagated_rule(block: Block) -> KernelRule:
    """
    Returns the rule of a reference: as much as follows from the rules of its ops and is
    proved (`kernel_parts`).
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
    Returns the dimensions that a rule has for values: none for values that it does not
    know.
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
