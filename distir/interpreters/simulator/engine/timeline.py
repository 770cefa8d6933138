"""
The effect of a function on the clocks of its mesh.

All devices of a mesh do the same at the same time, so one number per stream describes
all devices. If no communication is asynchronous, a call adds a fixed duration.
Otherwise the effect of a call depends on how far apart the streams are, and the call
replays the function's moments: each collective and each wait, with the computation
between them as one duration. The result is exact, although the call does not visit each
op. `streams.py` states the rules of streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from distir.interpreters.simulator.costs.shared_links import (
    Loads,
    fair_rates,
    left_by,
)


class Computing(NamedTuple):
    """A moment in which a function computes."""

    seconds: float


class Communicating(NamedTuple):
    """
    A moment in which a function takes part in a blocking collective. `axes` are the
    mesh axes of the collective's groups, and `loads` its loads on links.
    """

    seconds: float
    axes: tuple[str, ...]
    loads: Loads


class Starting(NamedTuple):
    """
    A moment in which a function starts an asynchronous collective. `axes` are the mesh
    axes of the collective's groups, and `loads` its loads on links.
    """

    seconds: float
    axes: tuple[str, ...]
    loads: Loads


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


class MeshStream:
    """
    The communication stream of one set of mesh axes, on all devices of a mesh. `free`
    is the time in seconds at which the stream becomes free. `delay` is the number of
    seconds by which blocking collectives have delayed the stream so far; the increase
    since the start of a collective delays this collective's arrival. `loads` are the
    last collective's loads.
    """

    __slots__ = ("delay", "free", "loads")

    def __init__(self) -> None:
        self.free = self.delay = 0.0
        self.loads: Loads = ()


class Arrival(NamedTuple):
    """
    The arrival of a collective's value on `stream`. `until` is the time at which the
    value arrives, without the stream's delay, and `since` the start of the period,
    without a pause, in which collectives have been in flight.
    """

    since: float
    until: float
    stream: MeshStream


@dataclass
class Clocks:
    """
    The clocks of a mesh, in seconds.

    - `compute`: the time until which the mesh computes;
    - `streams`: the communication streams by mesh axes; `busy`: the time until which
      any stream is busy; `since`: the start of the period in which a stream has been
      busy without a pause;
    - `idle`: the time waited; `transit`: the part of `idle` in which a value was in
      flight;
    - `contention`: the share of the device that computations lose while a communication
      stream is busy;
    - `slowed`, `shared`: the time by which collectives in flight lengthened
      computations, and blocking collectives.
    """

    compute: float = 0.0
    busy: float = 0.0
    since: float = 0.0
    idle: float = 0.0
    transit: float = 0.0
    contention: float = 0.0
    slowed: float = 0.0
    shared: float = 0.0
    streams: dict[tuple[str, ...], MeshStream] = field(
        default_factory=dict[tuple[str, ...], MeshStream]
    )

    def work(self, seconds: float) -> None:
        """
        Adds a computation that takes `seconds` if no communication stream is busy.
        """
        if self.contention and self.busy > self.compute:
            share = self.contention
            slowed = share * min(seconds / (1 - share), self.busy - self.compute)
            self.slowed += slowed
            seconds += slowed
        self.compute += seconds

    def wait(self, since: float, until: float) -> None:
        """
        Makes the mesh wait until the time `until` for a collective. Collectives have
        been in flight since the time `since`.
        """
        wait = until - self.compute
        if wait > 0:
            self.idle += wait
            self.transit += min(wait, until - since)
            self.compute += wait

    def communicate(self, seconds: float, axes: tuple[str, ...], loads: Loads) -> None:
        """Adds a blocking collective that takes `seconds` by itself."""
        if self.busy > self.compute:
            own = self.streams.get(axes)
            if own is not None:
                self.wait(self.since, own.free)
            longest = 0.0
            for other in self.streams.values():
                left = other.free - self.compute
                if other is own or left <= 0:
                    continue
                own_rate, other_rate = fair_rates(loads, other.loads)
                together = min(seconds / own_rate, left / other_rate)
                longest = max(longest, together * (1 - own_rate))
                delay = together * (1 - other_rate)
                other.delay += delay
                other.free += delay
                self.busy = max(self.busy, other.free)
            self.shared += longest
            seconds += longest
        self.compute += seconds

    def start(self, seconds: float, axes: tuple[str, ...], loads: Loads) -> Arrival:
        """
        Starts an asynchronous collective that takes `seconds` by itself, and returns
        its arrival.
        """
        own = self.streams.get(axes)
        if own is None:
            own = self.streams[axes] = MeshStream()
        begin = max(self.compute, own.free)
        if self.busy > begin:
            longest = 0.0
            for other in self.streams.values():
                left = other.free - begin
                if other is own or left <= 0:
                    continue
                speed = left_by(other.loads, loads)
                if speed > 0:
                    left = min(left, seconds / speed)
                longest = max(longest, left * (1 - speed))
            begin += longest
        elif self.busy < begin:
            self.since = begin
        own.free = begin + seconds
        self.busy = max(self.busy, own.free)
        if loads:
            own.loads = loads
        return Arrival(self.since, own.free - own.delay, own)


class Timeline:
    """
    The effect of a function on the clocks of its mesh. The methods `compute` to
    `append` record the effect in program order, and `play` applies it. `moments` holds
    the whole effect, `seconds` its duration if no communication is asynchronous, and
    `started` the number of asynchronous collectives.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.seconds = 0.0
        self.started = 0

    def compute(self, seconds: float) -> None:
        """Records a computation that takes `seconds`."""
        self.seconds += seconds
        if self.moments and isinstance(last := self.moments[-1], Computing):
            seconds += last.seconds
            self.moments.pop()
        self.moments.append(Computing(seconds))

    def collective(self, seconds: float, axes: tuple[str, ...], loads: Loads) -> None:
        """
        Records a blocking collective that takes `seconds`, over the mesh axes `axes`.
        `loads` are the loads of the collective on links.
        """
        self.seconds += seconds
        self.moments.append(Communicating(seconds, axes, loads))

    def start(self, seconds: float, axes: tuple[str, ...], loads: Loads) -> int:
        """
        Records the start of an asynchronous collective that takes `seconds`, over the
        mesh axes `axes`. `loads` are the loads of the collective on links. Returns the
        index of the collective.
        """
        self.moments.append(Starting(seconds, axes, loads))
        self.started += 1
        return self.started - 1

    def wait(self, number: int) -> None:
        """Records a wait for the asynchronous collective with index `number`."""
        self.moments.append(Waiting(number))

    def append(self, other: Timeline) -> int:
        """
        Records all effects of a called function. Returns the offset to add to the
        indices of the function's collectives.
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

    def play(self, clocks: Clocks) -> list[Arrival]:
        """
        Applies the effect of a call of the function to `clocks`. Returns the arrivals
        of the asynchronous collectives that the function starts, in order.
        """
        arrivals: list[Arrival] = []
        if not self.started and clocks.busy <= clocks.compute:
            clocks.compute += self.seconds
            return arrivals
        for moment in self.moments:
            if isinstance(moment, Computing):
                clocks.work(moment.seconds)
            elif isinstance(moment, Communicating):
                clocks.communicate(*moment)
            elif isinstance(moment, Starting):
                arrivals.append(clocks.start(*moment))
            else:
                since, until, stream = arrivals[moment.number]
                clocks.wait(since, until + stream.delay)
        return arrivals
