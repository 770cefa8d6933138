"""Which stages do the same, but on other meshes and other values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult, SSAValue

from distir.transforms.pipelines.functions import StageOps, needed_inside
from distir.transforms.pipelines.structure import Structure


@dataclass(frozen=True)
class Likeness:
    """
    What a group of ops does: groups with the same `key` have the same function, but for its
    mesh. `inputs`: the values that it takes, in the order of its arguments.
    """

    key: tuple[object, ...]
    inputs: tuple[SSAValue, ...]


class Likenesses:
    """The likenesses of the groups of a divided program, each worked out once."""

    def __init__(self, structure: Structure):
        self._structure = structure
        self._known: dict[StageOps, Likeness] = {}

    def of(self, group: StageOps) -> Likeness:
        """What a group of ops does, on which inputs."""
        if group not in self._known:
            self._known[group] = self._find(group)
        return self._known[group]

    def _find(self, group: StageOps) -> Likeness:
        own, kind = set(group.ops), self._structure.signature
        numbers: dict[SSAValue, int] = {}
        inputs: list[SSAValue] = []
        ops: list[tuple[int, ...]] = []

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
                    what = [o for o in owners if isinstance(o, Operation)]
                    add(value.op, needed, *[kind(o) for o in what])
            return numbers[value]

        def add(op: Operation, needed: Sequence[SSAValue], *what: int) -> None:
            ops.append((*what, -1, *[number(v) for v in needed]))
            for result in op.results:
                numbers[result] = len(numbers)

        for op in group.ops:
            add(op, op.operands, kind(op))
        outputs = (group.kept, group.accumulated)
        key = (*ops, *[tuple([numbers[v] for v in values]) for values in outputs])
        return Likeness(key, tuple(inputs))
