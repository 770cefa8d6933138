"""A program divided into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from distir.dialects.device import MeshOp
from distir.transforms.pipelines.homes import Homes
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.stages import StagePlacer, forward_stages
from distir.transforms.pipelines.structure import Structure


@dataclass(frozen=True)
class DividedProgram:
    """
    What `pipeline` finds out about a program before it builds another one of it. It
    depends on how many stages there are, but on the number of micro-batches only if the
    structure does (`Structure.is_for_one_count`).

    `module` holds the program; `stages` has the stage of each op that runs once per
    micro-batch, `homes` those of everything else.
    """

    module: ModuleOp
    structure: Structure
    stages: Mapping[Operation, int]
    homes: Homes

    @staticmethod
    def of(
        module: ModuleOp, structure: Structure, count: int, request: Sequence[str]
    ) -> DividedProgram:
        """The division into `count` stages (`forward_stages`). Raises DistIRError."""
        forward = forward_stages(structure, count, request)
        placer = StagePlacer(structure, forward)
        _postpone(structure, placer)
        return DividedProgram(
            module, structure, placer.stages, Homes(structure, placer.stages)
        )

    def with_micro_batches(self, count: int) -> DividedProgram:
        """The same for another number of micro-batches."""
        structure = copy(self.structure)
        structure.mesh = structure.mesh.with_size(structure.mesh.axes[0][0], count)
        return replace(self, structure=structure)

    def program(
        self, meshes: Sequence[MeshOp], functions: Sequence[FuncOp]
    ) -> list[Operation]:
        """
        The ops of a module with these meshes and functions in place of the program's; the
        others are copies.
        """
        ops: list[Operation] = []
        for op in self.module.body.block.ops:
            if isinstance(op, MeshOp):
                ops += meshes
            elif op is self.structure.function:
                ops += functions
            elif not isinstance(op, FuncOp):
                ops.append(op.clone())
        return ops


def _postpone(structure: Structure, placer: StagePlacer) -> None:
    """
    Ops on gradients alone that are linear may as well come after the micro-batches, on
    their sum: once instead of for each. So do those of one operand, and those that would
    send gradients between stages for each micro-batch (tied weights). A cast stays: the sum
    is to have its element type.
    """
    kinds = structure.kinds
    for op in reversed(structure.backward):
        users = {u.operation for r in op.results for u in r.uses}
        if any(kinds.get(u, Kind.AFTER) is not Kind.AFTER for u in users):
            continue
        if op.name == "onnx.Cast":
            continue
        times = [over_time(v).kind for v in op.operands]
        if "split" in times or "partial" not in times:
            continue
        if any(over_time(r).kind != "partial" for r in op.results):
            continue
        stages = {
            placer.stages[v.owner]
            for v, time in zip(op.operands, times, strict=True)
            if time == "partial" and isinstance(v.owner, Operation)
        }
        if times.count("partial") == 1 or len(stages) > 1:
            kinds[op] = Kind.AFTER
            del placer.stages[op]
    structure.backward = [op for op in structure.backward if kinds[op] is Kind.EACH]
