"""
The effect of a function on the clocks of its mesh.

All devices of a mesh do the same at the same time, so one number per stream describes
them all. A function without asynchronous communication adds a duration, unless the
communication stream is busy when the function is called. Otherwise its effect depends
on how far the two streams are apart. Then its moments are replayed: each collective and
each wait, with the computation between them as one duration. The result is exact, and
no single op is visited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class Computing(NamedTuple):
    """A moment in which a function computes."""

    seconds: float


class Communicating(NamedTuple):
    """
    A moment in which a function takes part in a collective that occupies the compute
    and the communication stream.
    """

    seconds: float


class Starting(NamedTuple):
    """A moment in which a function starts its next asynchronous collective."""

    seconds: float


class Waiting(NamedTuple):
    """
    A moment in which a function waits for the asynchronous collective with index
    `number`.
    """

    number: int


Moment: TypeAlias = Computing | Communicating | Starting | Waiting
"""
One effect of a function on the clocks: it computes, takes part in a collective, starts
one, or waits for one.
"""


@dataclass
class Clocks:
    """
    The clocks of a mesh, in seconds.

    - `compute`, `free`: the times until which the compute and the communication stream
      are busy;
    - `since`: the time since when the communication stream has been busy without a
      pause;
    - `idle`: the time waited; `transit`: the part of it in which a value was in flight;
    - `arrivals`: for each asynchronous collective, the time since when the stream has
      been busy, and the time at which the collective is done;
    - `contention`: the share of the device that computations lose while the
      communication stream is busy; `slowed`: the time that they lost.
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
        """Adds a computation that takes `seconds` if nothing is communicated."""
        if self.contention and self.free > self.compute:
            share = self.contention
            slowed = share * min(seconds / (1 - share), self.free - self.compute)
            self.slowed += slowed
            seconds += slowed
        self.compute += seconds

    def wait(self, since: float, until: float) -> None:
        """
        Waits until the time `until` for a collective, on a stream that has been busy
        since the time `since`.
        """
        wait = until - self.compute
        if wait > 0:
            self.idle += wait
            self.transit += min(wait, until - since)
            self.compute += wait


class Timeline:
    """
    The effect of a function on the clocks of its mesh. The methods `compute` to
    `append` record it in program order, and `play` applies it. `moments` holds the
    whole effect, `seconds` its duration if nothing is asynchronous, and `started` the
    number of its asynchronous collectives.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.seconds = 0.0
        self.started = 0

    def compute(self, seconds: float) -> None:
        """Records a computation of `seconds`."""
        self.seconds += seconds
        if self.moments and isinstance(last := self.moments[-1], Computing):
            seconds += last.seconds
            self.moments.pop()
        self.moments.append(Computing(seconds))

    def collective(self, seconds: float) -> None:
        """
        Records a collective of `seconds` that occupies the compute and the
        communication stream.
        """
        self.seconds += seconds
        self.moments.append(Communicating(seconds))

    def start(self, seconds: float) -> int:
        """
        Records the start of an asynchronous collective of `seconds`, and returns its
        index.
        """
        self.moments.append(Starting(seconds))
        self.started += 1
        return self.started - 1

    def wait(self, number: int) -> None:
        """Records a wait for the asynchronous collective with index `number`."""
        self.moments.append(Waiting(number))

    def append(self, other: Timeline) -> int:
        """
        Records all effects of a called function. Returns the offset to add to the
        indices of its collectives.
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
        """Applies the effect of a call of the function to `clocks`."""
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
