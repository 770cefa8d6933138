"""
Finds groups of ops of a pipeline that do the same on other meshes and other values, so that
one function serves them. The groups are of one program, and their ops are compared by the
caller: `Structure.signature` numbers ops within a program, `distir.planning.grid.contents`
across programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult, SSAValue

from distir.transforms.pipelines.functions import StageOps, needed_inside
from distir.transforms.pipelines.structure import Structure


@dataclass(frozen=True)
class GroupContent:
    """
    The content of a group of ops. Groups have the same function, but for its mesh, if
    their `ops` are alike one by one and connected in the same way (`wiring`). `inputs`
    are the values that the function takes, in the order of its arguments.
    """

    ops: tuple[Operation, ...]
    wiring: tuple[tuple[int, ...], ...]
    inputs: tuple[SSAValue, ...]


class GroupContents:
    """The contents of the groups of a divided program, each computed once."""

    def __init__(self, structure: Structure):
        self._structure = structure
        self._known: dict[StageOps, GroupContent] = {}

    def of(self, group: StageOps) -> GroupContent:
        """Returns the content of a group of ops, and its inputs."""
        if group not in self._known:
            self._known[group] = self._find(group)
        return self._known[group]

    def _find(self, group: StageOps) -> GroupContent:
        own, found = set(group.ops), list[Operation]()
        numbers: dict[SSAValue, int] = {}
        inputs: list[SSAValue] = []
        wiring: list[tuple[int, ...]] = []

        def number(value: SSAValue) -> int:
            if value not in numbers:
                owner = value.owner
                needed = None
                if not (isinstance(owner, Operation) and owner in own):
                    needed = needed_inside(value, self._structure)
                if needed is None:
                    inputs.append(value)
                    numbers[value] = len(numbers)
                else:
                    assert isinstance(value, OpResult)
                    owners = (v.owner for v in (value, *value.op.operands))
                    add(needed, *[o for o in owners if isinstance(o, Operation)])
            return numbers[value]

        def add(needed: Sequence[SSAValue], *what: Operation) -> None:
            wiring.append((len(what), *[number(v) for v in needed]))
            found.extend(what)
            for result in what[0].results:
                numbers[result] = len(numbers)

        for op in group.ops:
            add(op.operands, op)
        outputs = (group.kept, group.accumulated)
        wiring += [tuple([numbers[v] for v in values]) for values in outputs]
        return GroupContent(tuple(found), tuple(wiring), tuple(inputs))
