"""Where arguments live, and where ops run that come after the micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.passes.pipelines.kinds import Kind
from distir.passes.pipelines.structure import Structure


def stages_reached(
    structure: Structure, ops: Iterable[Operation], stages: Mapping[Operation, int]
) -> dict[SSAValue, set[int]]:
    """
    For each value the stages on which some of the given ops need it, directly or through
    ops that come before them. `stages` has the stage of each of the ops.
    """
    found: dict[SSAValue, set[int]] = {}
    given = set(ops)
    for op in reversed(structure.ops):
        if op in given:
            reached = {stages[op]}
        elif structure.kinds.get(op) in (Kind.BEFORE, Kind.DIVIDE):
            reached = set[int]().union(*(found.get(r, ()) for r in op.results))
        else:
            continue
        if reached:
            for value in op.operands:
                found.setdefault(value, set()).update(reached)
    return found


class Homes:
    """
    - `arguments`: the stage that each argument lives on: the first that needs it for its
      forward, or else for its backward; what only ops after the micro-batches need lives
      where the first of them runs.
    - `after`: the stage of each op of kind `AFTER`. An update runs where its argument
      lives; any other op on the first stage that has an operand.
    """

    def __init__(self, structure: Structure, stages: Mapping[Operation, int]):
        self.arguments: dict[SSAValue, int] = {}
        self.after: dict[Operation, int] = {}
        self._stages = stages
        block = structure.function.body.block
        for ops in (structure.forward, structure.backward):
            reached = stages_reached(structure, ops, stages)
            for arg in block.args:
                if arg in reached:
                    self.arguments.setdefault(arg, min(reached[arg]))
        for op in structure.ops:
            if structure.kinds.get(op) is Kind.AFTER:
                self.after[op] = stage = self._stage(op)
                for value in op.operands:
                    if isinstance(value, BlockArgument):
                        self.arguments.setdefault(value, stage)
        for arg in block.args:
            self.arguments.setdefault(arg, 0)

    def _stage(self, op: Operation) -> int:
        # The argument that an op updates is its first operand.
        if op.operands and op.operands[0] in self.arguments:
            return self.arguments[op.operands[0]]
        known = (self._of(v) for v in op.operands)
        return min((stage for stage in known if stage is not None), default=0)

    def _of(self, value: SSAValue) -> int | None:
        owner = value.owner
        if not isinstance(owner, Operation):
            return self.arguments.get(value)
        return self._stages.get(owner, self.after.get(owner))
