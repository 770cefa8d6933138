"""
The actions that each action of a schedule waits for, and an order in which ranks can
run all actions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from distir.errors import DistIRError
from distir.pipelining.actions import Action, Phase, PipelineSchedule

StageEdges = Collection[tuple[int, int]]
"""
Pairs (producer, consumer) of stages between which values are sent in the forward. An
edge may skip stages. If no edges are given, each stage sends to the next one.
"""


def dependencies(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> dict[Action, tuple[Action, ...]]:
    """
    Returns, for each action, the actions whose results it needs.

    The forward pass of a stage needs the forward passes of all stages that send to the
    stage. A backward pass (`B` or `I`) needs the forward pass of the same stage, and
    the backward passes of all stages to which its stage sends. A `W` needs the `I` of
    the same stage. The schedule must be complete (`check_complete`). Raises DistIRError
    if `edges` name a stage that the schedule lacks.
    """
    if edges is None:
        edges = [(stage - 1, stage) for stage in range(1, schedule.stages)]
    producers: defaultdict[int, list[int]] = defaultdict(list)
    consumers: defaultdict[int, list[int]] = defaultdict(list)
    for producer, consumer in sorted(set(edges)):
        for stage in (producer, consumer):
            if not 0 <= stage < schedule.stages:
                raise DistIRError(
                    f"schedule: the model sends from stage {producer} to stage {consumer}, "
                    f"but the schedule has stages 0 to {schedule.stages - 1}: take a "
                    "schedule with as many stages as the model"
                )
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    every = {action for row in schedule.actions for action in row}

    def backward(stage: int, micro_batch: int) -> Action:
        whole = Action(stage, Phase.BACKWARD, micro_batch)
        return (
            whole
            if whole in every
            else Action(stage, Phase.BACKWARD_INPUT, micro_batch)
        )

    def needs(action: Action) -> tuple[Action, ...]:
        stage, phase, batch = action.stage, action.phase, action.micro_batch
        if phase is Phase.FORWARD:
            return tuple(Action(p, phase, batch) for p in producers[stage])
        if phase is Phase.BACKWARD_WEIGHT:
            return (Action(stage, Phase.BACKWARD_INPUT, batch),)
        own = Action(stage, Phase.FORWARD, batch)
        return own, *(backward(c, batch) for c in consumers[stage])

    return {action: needs(action) for row in schedule.actions for action in row}


def executable_order(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> list[Action]:
    """
    Returns all actions in an order that respects every dependency and the order of each
    rank's own actions. The schedule must be complete. Raises DistIRError if ranks would
    wait for each other forever; the message shows the cycle.
    """
    return ordered(schedule, dependencies(schedule, edges))


def ordered(
    schedule: PipelineSchedule, needs: Mapping[Action, Sequence[Action]]
) -> list[Action]:
    """
    Returns all actions in an order that respects the dependencies `needs` and the order
    of each rank's own actions. Raises DistIRError if ranks would wait for each other
    forever.
    """
    order: list[Action] = []
    done: set[Action] = set()
    position = [0] * schedule.ranks
    waiting: dict[Action, list[int]] = {}
    runnable = list(range(schedule.ranks))
    while runnable:
        rank = runnable.pop()
        row = schedule.actions[rank]
        while position[rank] < len(row):
            action = row[position[rank]]
            missing = next((need for need in needs[action] if need not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            done.add(action)
            order.append(action)
            position[rank] += 1
            runnable += waiting.pop(action, ())
    if waiting:
        raise DistIRError(_deadlock(schedule, position, waiting))
    return order


def _deadlock(
    schedule: PipelineSchedule, position: list[int], waiting: dict[Action, list[int]]
) -> str:
    """
    Returns a message that describes a cycle of ranks that wait for each other.
    `waiting` maps each awaited action to the ranks that wait for it. `position` gives,
    for each rank, the index of the action at which the rank waits.
    """
    missing = {rank: action for action, ranks in waiting.items() for rank in ranks}
    path = [min(missing)]
    while (following := schedule.stage_rank(missing[path[-1]].stage)) not in path:
        path.append(following)
    cycle = path[path.index(following) :]
    waits = "; ".join(
        f"rank {rank} waits at {schedule.actions[rank][position[rank]]} for {missing[rank]}"
        + (", which comes later on the same rank" if len(cycle) == 1 else "")
        for rank in cycle
    )
    return (
        f"schedule: it would deadlock: {waits}. Put the awaited action of one of these "
        "ranks before the one that it waits at"
    )
