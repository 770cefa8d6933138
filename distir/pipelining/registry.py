"""The known pipeline schedules, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distir.errors import DistIRError
from distir.pipelining.actions import PipelineSchedule
from distir.pipelining.alternating import (
    forward_only,
    gpipe,
    interleaved_one_forward_one_backward,
    one_forward_one_backward,
    zero_bubble,
)
from distir.pipelining.v_shaped import dualpipev, dualpipev_whole, zbv


@dataclass(frozen=True)
class ScheduleKind:
    """
    A kind of schedule. `generate(ranks, micro_batches, chunks)` makes a schedule with
    `chunks` stages on each rank. `chunks` must be at least `least_chunks` and at most
    `most_chunks`; it has no upper limit if `most_chunks` is None.
    """

    generate: Callable[[int, int, int], PipelineSchedule]
    least_chunks: int = 1
    most_chunks: int | None = 1


SCHEDULES: dict[str, ScheduleKind] = {
    "gpipe": ScheduleKind(gpipe),
    "1f1b": ScheduleKind(one_forward_one_backward),
    "interleaved-1f1b": ScheduleKind(interleaved_one_forward_one_backward, 2, None),
    "zb-h1": ScheduleKind(zero_bubble),
    "interleaved-zero-bubble": ScheduleKind(zero_bubble, 2, None),
    "zbv": ScheduleKind(zbv, 2, 2),
    "dualpipev": ScheduleKind(dualpipev, 2, 2),
    "dualpipev-whole": ScheduleKind(dualpipev_whole, 2, 2),
    "forward": ScheduleKind(forward_only, 1, None),
}
"""
The known kinds of schedules, by name. All work with any number of ranks and of
micro-batches from 1 on.
"""


def build_schedule(
    name: str, ranks: int, micro_batches: int, chunks: int | None = None
) -> PipelineSchedule:
    """
    Returns the schedule `name` for the given numbers of ranks, micro-batches and chunks
    (stages per rank). By default, `chunks` is the smallest number that the schedule
    allows. Raises DistIRError for an unknown name and for numbers that the schedule
    does not allow.
    """
    kind = SCHEDULES.get(name)
    if kind is None:
        raise DistIRError(
            f"schedule: there is none called {name!r}: choose from {', '.join(SCHEDULES)}"
        )
    for what, number in (("ranks", ranks), ("micro-batches", micro_batches)):
        if number < 1:
            raise DistIRError(
                f"schedule {name}: {number} {what}: it takes 1 or more of them"
            )
    chunks = kind.least_chunks if chunks is None else chunks
    if chunks < kind.least_chunks or (
        kind.most_chunks is not None and chunks > kind.most_chunks
    ):
        allowed = (
            f"{kind.least_chunks} or more chunks"
            if kind.most_chunks is None
            else f"{kind.least_chunks} chunk" + "s" * (kind.least_chunks > 1)
        )
        fitting = ", ".join(
            other
            for other, k in SCHEDULES.items()
            if k.least_chunks <= chunks <= (k.most_chunks or chunks)
        )
        raise DistIRError(
            f"schedule {name}: it has {allowed} (stages on each rank), not {chunks}: give "
            f"it as many, or choose a schedule that takes {chunks}: {fitting or 'none'}"
        )
    return kind.generate(ranks, micro_batches, chunks)
