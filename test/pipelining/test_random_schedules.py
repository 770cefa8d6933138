"""
Random schedules are valid, run, and survive CSV; random damage is found exactly where a
second, naive check finds it.
"""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import tries

from distir.errors import DistIRError
from distir.pipelining import (
    SCHEDULES,
    Action,
    PipelineSchedule,
    build_schedule,
    check_schedule,
    dependencies,
    global_order,
    in_flight_per_rank,
    read_csv,
    write_csv,
)


@st.composite
def schedules(draw: st.DrawFn, most_ranks: int = 6, most: int = 16) -> PipelineSchedule:
    """Any schedule that we can build, up to these sizes."""
    name = draw(st.sampled_from(list(SCHEDULES)))
    kind = SCHEDULES[name]
    chunks = draw(st.integers(kind.least_chunks, kind.most_chunks or 4))
    ranks = draw(st.integers(1, most_ranks))
    return build_schedule(name, ranks, draw(st.integers(1, most)), chunks)


Row = list[tuple[int, str, int]]
"""A rank's actions as plain tuples: stage, letter of the phase, micro-batch."""


def plain(schedule: PipelineSchedule) -> list[Row]:
    return [
        [(a.stage, a.phase.value, a.micro_batch) for a in row]
        for row in schedule.actions
    ]


def is_valid(rows: list[Row]) -> bool:
    """The definition of a schedule, read off the definition: complete, and it ends."""
    if not rows or not all(rows):
        return False
    homes = {(stage, rank) for rank, row in enumerate(rows) for stage, _, _ in row}
    every = [action for row in rows for action in row]
    stages = {stage for stage, _, _ in every}
    batches = {batch for _, _, batch in every}
    if stages != set(range(len(stages))) or batches != set(range(len(batches))):
        return False
    if len(homes) != len(stages):
        return False
    allowed = {"F"} if {phase for _, phase, _ in every} == {"F"} else {"BF", "FIW"}
    phases: Counter[tuple[int, int]] = Counter((s, b) for s, _, b in every)
    for stage in stages:
        for batch in batches:
            letters = sorted(p for s, p, b in every if (s, b) == (stage, batch))
            if "".join(letters) not in allowed:
                return False
    assert len(phases) == len(stages) * len(batches)
    done: set[tuple[int, str, int]] = set()
    left = [list(row) for row in rows]
    moved = True
    while moved:
        moved = False
        for row in left:
            if row and may_run(row[0], done, len(stages)):
                done.add(row.pop(0))
                moved = True
    return not any(left)


def may_run(
    action: tuple[int, str, int], done: set[tuple[int, str, int]], n: int
) -> bool:
    stage, phase, batch = action
    if phase == "F":
        return stage == 0 or (stage - 1, "F", batch) in done
    if phase == "W":
        return (stage, "I", batch) in done
    came_back = stage == n - 1 or any((stage + 1, p, batch) in done for p in "BI")
    return came_back and (stage, "F", batch) in done


@given(schedules())
@settings(deadline=None)
def test_valid_and_through_csv(schedule: PipelineSchedule) -> None:
    check_schedule(schedule)
    assert is_valid(plain(schedule))
    assert read_csv(write_csv(schedule)) == schedule


@given(schedules(), st.data())
@settings(deadline=None)
def test_global_order(schedule: PipelineSchedule, data: st.DataObject) -> None:
    """Of a chain, and of any graph of stages whose edges lead to later ones."""
    pairs = [(a, b) for b in range(schedule.stages) for a in range(b)]
    edges = (
        data.draw(st.none() | st.lists(st.sampled_from(pairs), unique=True))
        if pairs
        else None
    )
    order = global_order(schedule, edges)
    position = {action: n for n, action in enumerate(order)}
    assert len(position) == len(order) == sum(map(len, schedule.actions))
    for row in schedule.actions:
        assert [a for a in order if a in set(row)] == list(row)
    for action, needs in dependencies(schedule, edges).items():
        assert all(position[need] < position[action] for need in needs)


@given(schedules())
@settings(deadline=None)
def test_no_more_in_flight_than_all(schedule: PipelineSchedule) -> None:
    chunks = schedule.stages // schedule.ranks
    assert max(in_flight_per_rank(schedule)) <= chunks * schedule.micro_batches


@given(schedules(most_ranks=3, most=4), st.data())
@settings(max_examples=tries(400), deadline=None)
def test_damage(schedule: PipelineSchedule, data: st.DataObject) -> None:
    """One or two times an action is dropped, doubled, moved, swapped or altered."""
    rows: list[list[Action]] = [list(row) for row in schedule.actions]
    for _ in range(data.draw(st.integers(1, 2))):
        damage(rows, data)
    damaged = PipelineSchedule.of(rows)
    try:
        check_schedule(damaged)
        accepted = True
    except DistIRError:
        accepted = False
    assert accepted == is_valid(plain(damaged))


def damage(rows: list[list[Action]], data: st.DataObject) -> None:
    filled = [rank for rank, row in enumerate(rows) if row]
    if not filled:
        return
    row = rows[data.draw(st.sampled_from(filled))]
    at = data.draw(st.integers(0, len(row) - 1))
    kind = data.draw(st.sampled_from(["drop", "double", "move", "swap", "alter"]))
    if kind == "swap":
        other = data.draw(st.integers(0, len(row) - 1))
        row[at], row[other] = row[other], row[at]
        return
    action = row[at] if kind == "double" else row.pop(at)
    if kind == "drop":
        return
    if kind == "alter":
        stage, phase, batch = action.stage, action.phase, action.micro_batch
        change = data.draw(st.sampled_from(["stage", "phase", "micro-batch"]))
        if change == "stage":
            stage = data.draw(st.integers(0, 6))
        elif change == "phase":
            phase = data.draw(st.sampled_from(type(phase)))
        else:
            batch = data.draw(st.integers(0, 4))
        row.insert(at, Action(stage, phase, batch))
        return
    target = rows[data.draw(st.integers(0, len(rows) - 1))]
    target.insert(data.draw(st.integers(0, len(target))), action)
