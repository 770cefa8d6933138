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
from typing import NamedTuple, TypeAlias


class Computing(NamedTuple):
    """A function computes."""

    seconds: float


class Communicating(NamedTuple):
    """A function takes part in a collective that occupies both streams."""

    seconds: float


class Starting(NamedTuple):
    """A function starts its next asynchronous collective."""

    seconds: float


class Waiting(NamedTuple):
    """A function waits for an asynchronous collective."""

    number: int


Moment: TypeAlias = Computing | Communicating | Starting | Waiting
"""Something that a function does to the clocks."""


@dataclass
class Clocks:
    """
    The streams of a mesh, in seconds: `compute` and `free` are the times until which the
    compute and communication streams are busy, `since` the time since when the
    communication stream has been; `idle` are the seconds waited, `transit` those of them
    for values in flight. `arrivals` has, for each asynchronous collective, since when the
    stream has been busy and when it is done. While it is busy, computations are slower by
    the share `contention`; `slowed` are the seconds that they took longer.
    """

    compute: float
    free: float
    since: float
    idle: float = 0.0
    transit: float = 0.0
    arrivals: list[tuple[float, float]] = field(
        default_factory=list[tuple[float, float]]
    )
    contention: float = 0.0
    slowed: float = 0.0

    def work(self, seconds: float) -> None:
        """Computes what takes so many seconds while nothing is communicated."""
        if self.contention and self.free > self.compute:
            share = self.contention
            slowed = share * min(seconds / (1 - share), self.free - self.compute)
            self.slowed += slowed
            seconds += slowed
        self.compute += seconds

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
    The effect of a function on the clocks of its mesh. The methods `compute` to
    `append` record it in program order; `play` applies it. `moments` has all of it,
    `seconds` is its duration if nothing is asynchronous, `started` the number of its
    asynchronous collectives.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.seconds = 0.0
        self.started = 0

    def compute(self, seconds: float) -> None:
        """Adds a computation of so many seconds."""
        self.seconds += seconds
        if self.moments and isinstance(last := self.moments[-1], Computing):
            seconds += last.seconds
            self.moments.pop()
        self.moments.append(Computing(seconds))

    def collective(self, seconds: float) -> None:
        """Adds a collective of so many seconds, which occupies both streams."""
        self.seconds += seconds
        self.moments.append(Communicating(seconds))

    def start(self, seconds: float) -> int:
        """Adds an asynchronous collective of so many seconds; returns its number."""
        self.moments.append(Starting(seconds))
        self.started += 1
        return self.started - 1

    def wait(self, number: int) -> None:
        """Adds a wait for the asynchronous collective of that number."""
        self.moments.append(Waiting(number))

    def append(self, other: Timeline) -> int:
        """
        Adds all that a called function does; returns by how much the numbers of its
        collectives are higher than in `other`.
        """
        first = self.started
        if not other.started and all(isinstance(m, Computing) for m in other.moments):
            self.compute(other.seconds)
            return first
        self.seconds += other.seconds
        self.moments += [
            Waiting(first + m.number) if isinstance(m, Waiting) else m
            for m in other.moments
        ]
        self.started += other.started
        return first

    def play(self, clocks: Clocks) -> None:
        """Changes the clocks as the function does when it is called with them."""
        if not self.started and clocks.free <= clocks.compute:
            clocks.compute += self.seconds
            return
        for moment in self.moments:
            if isinstance(moment, Computing):
                clocks.work(moment.seconds)
            elif isinstance(moment, Communicating):
                clocks.wait(clocks.since, clocks.free)
                clocks.compute += moment.seconds
                clocks.free = clocks.since = clocks.compute
            elif isinstance(moment, Starting):
                begin = max(clocks.compute, clocks.free)
                if clocks.free < begin:
                    clocks.since = begin
                clocks.free = begin + moment.seconds
                clocks.arrivals.append((clocks.since, clocks.free))
            else:
                clocks.wait(*clocks.arrivals[moment.number])
