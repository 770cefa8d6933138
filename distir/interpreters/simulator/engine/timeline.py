"""
What a function on one mesh does to the mesh's clocks.

The devices of a mesh do the same at the same time, so one number for each stream says
where they are. A function without anything asynchronous adds a duration, as long as the
communication stream is not busy when it is called. Otherwise its effect depends on how far
the streams are apart; then its moments are gone through, one for each collective and wait,
with what is computed between them as one duration. That is exact, and costs nothing for the
ops between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

COMPUTE, COLLECTIVE, START, WAIT = range(4)


class Moment(NamedTuple):
    """
    Something that a function does to the clocks: it computes, or is in a collective that
    occupies both streams, for so many `seconds`; or it starts the asynchronous collective
    number `value`, or waits for it.
    """

    kind: int
    value: int
    seconds: float


@dataclass
class Clocks:
    """
    The streams of a mesh: `compute` and `free` until when each is busy, `since` when the
    communication stream has been; the seconds waited (`idle`), and those of them for what was
    on its way (`transit`). `arrivals` has, per asynchronous collective, since when the stream
    has been busy and when it is done.
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
        """Waits for what is done then, on a stream that has been busy since."""
        wait = until - self.compute
        if wait > 0:
            self.idle += wait
            self.transit += min(wait, until - since)
            self.compute += wait


class Timeline:
    """
    What a function does to the clocks of its mesh. The methods `compute` to `append` write
    it down, in the order of the program; `play` does it. `moments` has all of it, `seconds`
    is its duration when nothing is asynchronous, `started` the number of asynchronous
    collectives in it.
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
        """Adds an asynchronous collective of so many seconds; gives its number."""
        self.moments.append(Moment(START, self.started, seconds))
        self.started += 1
        return self.started - 1

    def wait(self, value: int) -> None:
        """Adds a wait for the asynchronous collective of that number."""
        self.moments.append(Moment(WAIT, value, 0.0))

    def append(self, other: Timeline) -> int:
        """
        Adds all that a called function does; gives what its collectives' numbers are higher
        by than in `other`.
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
        """Changes the clocks as the function does, from how they are when it is called."""
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
