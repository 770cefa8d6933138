"""
The effect of a function on the clocks of its mesh.

The devices of a mesh do the same at the same time, so that one number for each stream
describes all of them. A function without anything asynchronous adds a duration, as long as
the communication stream is not busy when it is called. Otherwise its effect depends on how
far the streams are apart; then its moments are replayed, one for each collective and wait,
with the computation between them as one duration. That is exact, and the ops between cost
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

COMPUTE, COLLECTIVE, START, WAIT = range(4)


class Moment(NamedTuple):
    """
    Something that a function does to the clocks: it computes, or takes part in a collective
    that occupies both streams, for so many `seconds`; or it starts the asynchronous
    collective number `value`, or waits for it.
    """

    kind: int
    value: int
    seconds: float


@dataclass
class Clocks:
    """
    The streams of a mesh, in seconds: `compute` and `free` are the times until which the
    compute and communication streams are busy, `since` the time since when the
    communication stream has been; `idle` are the seconds waited, `transit` those of them
    for values in flight. `arrivals` has, for each asynchronous collective, since when the
    stream has been busy and when it is done.
    """

    compute: float
    free: float
    since: float
    idle: float = 0.0
    transit: float = 0.0
    arrivals: list[tuple[float, float]] = field(
        default_factory=list[tuple[float, float]]
    )

    def wait(self, since: float, until: float) -> None:
        """
        Waits until a time, for something on a stream that has been busy since another.
        """
        wait = until - self.compute
        if wait > 0:
            self.idle += wait
            self.transit += min(wait, until - since)
            self.compute += wait


class Timeline:
    """
    What a function does to the clocks of its mesh. The methods `compute` to `append` record
    it in program order; `play` applies it. `moments` has all of it, `seconds` is its
    duration if nothing is asynchronous, `started` the number of its asynchronous
    collectives.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.seconds = 0.0
        self.started = 0

    def compute(self, seconds: float) -> None:
        """Adds a computation of so many seconds."""
        self.seconds += seconds
        if self.moments and self.moments[-1].kind == COMPUTE:
            seconds += self.moments.pop().seconds
        self.moments.append(Moment(COMPUTE, 0, seconds))

    def collective(self, seconds: float) -> None:
        """Adds a collective of so many seconds, which occupies both streams."""
        self.seconds += seconds
        self.moments.append(Moment(COLLECTIVE, 0, seconds))

    def start(self, seconds: float) -> int:
        """Adds an asynchronous collective of so many seconds; returns its number."""
        self.moments.append(Moment(START, self.started, seconds))
        self.started += 1
        return self.started - 1

    def wait(self, value: int) -> None:
        """Adds a wait for the asynchronous collective of that number."""
        self.moments.append(Moment(WAIT, value, 0.0))

    def append(self, other: Timeline) -> int:
        """
        Adds all that a called function does; returns by how much the numbers of its
        collectives are higher than in `other`.
        """
        first = self.started
        if not other.started and all(m.kind == COMPUTE for m in other.moments):
            self.compute(other.seconds)
            return first
        self.seconds += other.seconds
        self.moments += [Moment(k, first + v, s) for k, v, s in other.moments]
        self.started += other.started
        return first

    def play(self, clocks: Clocks) -> None:
        """Changes the clocks as the function does when it is called with them."""
        if not self.started and clocks.free <= clocks.compute:
            clocks.compute += self.seconds
            return
        for kind, value, seconds in self.moments:
            if kind == COMPUTE:
                clocks.compute += seconds
            elif kind == COLLECTIVE:
                clocks.wait(clocks.since, clocks.free)
                clocks.compute += seconds
                clocks.free = clocks.since = clocks.compute
            elif kind == START:
                begin = max(clocks.compute, clocks.free)
                if clocks.free < begin:
                    clocks.since = begin
                clocks.free = begin + seconds
                clocks.arrivals.append((clocks.since, clocks.free))
            else:
                clocks.wait(*clocks.arrivals[value])
