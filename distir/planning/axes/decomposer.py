"""Ops that a plan splits where only their decompositions can be split."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from distir.dialects.dist import Layout
from distir.errors import DistIRError
from distir.planning.axes.candidates import (
    OpLayouts,
)
from distir.planning.axes.choices import (
    FunctionChoice,
    OpChoice,
)
from distir.program import describe
from distir.sharding.decompose import (
    PartLayouts,
    decompose,
    equal_before,
    layouts_of_parts,
)
from distir.sharding.mesh import Mesh
from distir.sharding.placement import (
    add_placement,
    placement_in,
)
from distir.sharding.rule import rank_of


class Decomposer:
    """
    Replaces the ops that the choice for an axis decomposes.

    - `ops`: the layouts that the axes before gave to each op; the ops of a decomposition
      take the place of theirs;
    - `choices`: what was chosen for each function.
    """

    def __init__(
        self,
        ops: MutableMapping[Operation, OpLayouts],
        choices: Sequence[FunctionChoice],
        mesh: Mesh,
        axis: str,
    ):
        self.ops = ops
        self.choices = choices
        self.mesh = mesh
        self.axis = axis

    def run(self) -> bool:
        """
        Whether the choices, with those for the ops of the decompositions in them, are
        what is best now: not if a decomposition leaves the op's own result partial, which
        may then be brought together otherwise or later.
        """
        chosen = [c for solved in self.choices for c in solved.ops if c.decompose]
        parts = {c.op: _parts(c.op) for c in chosen}
        is_settled = not any(
            self._leaves_result_partial(c, parts[c.op]) for c in chosen
        )
        for op, own in parts.items():
            self._replace(op, own, is_settled)
        return is_settled

    def _leaves_result_partial(
        self, choice: OpChoice, parts: Sequence[Operation]
    ) -> bool:
        result = choice.op.results[0].type
        layouts = self._layouts(choice, parts)
        return any(
            value.type == result and self.axis in layout.partial_axes
            for part, own in zip(parts, layouts, strict=True)
            for value, layout in zip(part.results, own.results, strict=True)
        )

    def _layouts(
        self, choice: OpChoice, parts: Sequence[Operation]
    ) -> list[PartLayouts]:
        """With this axis too."""
        op = choice.op
        base = self.ops.get(op)
        whole = Layout(self.mesh.name)
        before = [whole] * len(op.operands) if base is None else base.operands
        layouts = [
            add_placement(layout, self.axis, placement, rank_of(value.type))
            for layout, placement, value in zip(
                before, choice.operands, op.operands, strict=True
            )
        ]
        return layouts_of_parts(op, parts, layouts, self.mesh)

    def _replace(
        self, op: Operation, parts: Sequence[Operation], is_settled: bool
    ) -> None:
        for solved in self.choices if is_settled else ():
            ops = [c.op for c in solved.ops]
            if op in ops:
                i = ops.index(op)
                solved.ops[i : i + 1] = self._choices(solved.ops[i], parts)
        base = self.ops.pop(op, None)
        if base is not None:
            found = layouts_of_parts(op, parts, base.operands, self.mesh)
            for part, (operands, results, split) in zip(parts, found, strict=True):
                self.ops[part] = OpLayouts(list(operands), list(results), dict(split))
        Rewriter.replace_op(op, parts)
        for part in parts[:-1]:
            same = equal_before(part)
            if same is not None and self._treated_alike(same, part):
                self.ops.pop(part, None)
                for solved in self.choices:
                    solved.ops[:] = [c for c in solved.ops if c.op is not part]
                Rewriter.replace_op(part, [], same.results)

    def _choices(self, choice: OpChoice, parts: Sequence[Operation]) -> list[OpChoice]:
        """What the choice for an op means for the ops of its decomposition."""
        found: list[OpChoice] = []
        for part, own in zip(parts, self._layouts(choice, parts), strict=True):
            split = [
                (factor, shard.run)
                for factor, shards in own.assignment.items()
                for shard in shards
                if shard.axis == self.axis
            ]
            factor, run = split[0] if split else (None, None)
            operands = tuple(placement_in(x, self.axis) for x in own.operands)
            results = tuple(placement_in(x, self.axis) for x in own.results)
            found.append(OpChoice(part, operands, results, factor, run))
        return found

    def _treated_alike(self, first: Operation, second: Operation) -> bool:
        if self.ops.get(first) != self.ops.get(second):
            return False
        for solved in self.choices:
            by_op: Mapping[Operation, OpChoice] = {c.op: c for c in solved.ops}
            a, b = by_op.get(first), by_op.get(second)
            if (a is None) != (b is None) or (a and b and a.on(second) != b):
                return False
        return True


def _parts(op: Operation) -> list[Operation]:
    parts = decompose(op)
    if parts is None:
        raise DistIRError(
            f"{describe(op)} has a dimension that it cannot split by itself, and no "
            f"decomposition; register one (distir.sharding.decompose)"
        )
    return parts
