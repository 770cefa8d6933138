"""The ops of every stage and phase of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Operation

from distir.pipelining import Phase, PipelineSchedule
from distir.sharding.placement import PartialPlacement
from distir.transforms.pipelines.functions import StageOps
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.structure import Structure

NAMES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.BACKWARD_INPUT: "backward_input",
    Phase.BACKWARD_WEIGHT: "backward_weight",
}


def stage_groups(
    structure: Structure, stages: Mapping[Operation, int], schedule: PipelineSchedule
) -> dict[tuple[int, Phase], StageOps]:
    """
    Returns the ops of every stage and phase that the schedule has. `stages` has the stage
    of each op that runs once per micro-batch.
    """
    groups: dict[tuple[int, Phase], StageOps] = {}
    for stage, phase in schedule.stage_phases:
        source = structure.forward if phase is Phase.FORWARD else structure.backward
        ops = [op for op in source if stages[op] == stage]
        if phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT):
            first = _needed_by_others(ops, structure)
            wanted = phase is Phase.BACKWARD_INPUT
            ops = [op for op in ops if (op in first) is wanted]
        if ops:
            name = NAMES[phase]
            if schedule.stages > 1:
                name = f"stage{stage}_{name}"
            groups[stage, phase] = StageOps.of(name, stage, ops, structure)
    return groups


def _needed_by_others(ops: Sequence[Operation], structure: Structure) -> set[Operation]:
    """
    Returns the backward ops of a stage on which gradients for other stages depend; on a
    stage that sends none, all but those that give gradients of weights alone.
    """
    found = set(structure.backward) - set(ops)
    own: set[Operation] = set()
    for op in reversed(ops):
        if any(u.operation in found for r in op.results for u in r.uses):
            found.add(op)
            own.add(op)
    if own:
        return own
    wanted = [
        op
        for op in ops
        if any(not isinstance(over_time(r), PartialPlacement) for r in op.results)
    ]
    return set(wanted) or set(ops)
