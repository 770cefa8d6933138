"""
The machine for programs in which all devices of a mesh do the same, so one clock per
mesh is enough.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from distir.interpreters.simulator.engine.compiled import (
    CommunicationStep,
    ComputationStep,
)
from distir.interpreters.simulator.engine.machine import Buffer
from distir.interpreters.simulator.engine.summaries import (
    Summaries,
    SummarisingMachine,
)
from distir.interpreters.simulator.engine.timeline import Arrival, Clocks, Timeline


class UniformMachine(SummarisingMachine):
    """
    A machine for programs in which all devices of a mesh do the same
    (`UniformDeviceMap`). It has one position (one set of clocks) for each of `meshes`
    meshes. Its results equal the results of `Machine`, which is slower.
    """

    def __init__(self, meshes: int, summaries: Summaries | None = None):
        super().__init__(meshes, summaries)
        # The time at which the last asynchronous send between two meshes ends.
        self._free: dict[tuple[int, ...], float] = {}
        # The communication streams of each mesh, instead of the machine's `streams`.
        # Only meshes with asynchronous collectives have any.
        self._clocks_of: dict[int, Clocks] = {}

    @contextmanager
    def _clocks_at(self, mesh: int) -> Generator[Clocks]:
        """
        Yields the clocks of a mesh, and stores their new times in the machine
        afterwards.
        """
        clocks = self._clocks_of.get(mesh)
        if clocks is None:
            clocks = self._clocks_of[mesh] = Clocks()
            if self.contention is not None:
                clocks.contention = float(self.contention[mesh])
        clocks.compute = float(self.clock[mesh])
        yield clocks
        self.clock[mesh] = clocks.compute
        self.idle[mesh] += clocks.idle
        self.transit[mesh] += clocks.transit
        self.streams.slowed[mesh] += clocks.slowed
        self.streams.shared[mesh] += clocks.shared
        clocks.idle = clocks.transit = clocks.slowed = clocks.shared = 0.0

    def play(self, timeline: Timeline, mesh: int) -> Sequence[Arrival]:
        """
        Applies the effect of a function to the clocks of the mesh at position `mesh`.
        Returns the arrival of each asynchronous collective that the function starts.
        """
        if not timeline.started and mesh not in self._clocks_of:
            self.clock[mesh] += timeline.seconds
            return ()
        with self._clocks_at(mesh) as clocks:
            return timeline.play(clocks)

    def _compute(self, step: ComputationStep) -> None:
        """Runs a computation: advances the clocks of its mesh."""
        mesh = step.positions.start if isinstance(step.positions, slice) else None
        if self.contention is None or mesh not in self._clocks_of:
            super()._compute(step)
            return
        with self._clocks_at(mesh) as clocks:
            clocks.work(float(step.seconds))

    def _communicate(self, step: CommunicationStep) -> None:
        """
        Runs blocking communication: the meshes that take part wait for each other, and
        are then busy.
        """
        mesh = step.transfers[0].meshes[0]
        if not step.is_collective or mesh not in self._clocks_of:
            super()._communicate(step)
            return
        (transfer,) = step.transfers
        with self._clocks_at(mesh) as clocks:
            clocks.communicate(float(transfer.seconds), transfer.axes, transfer.loads)

    def wait_for(self, buffer: Buffer) -> None:
        """Makes the mesh of a value that is in flight wait until it has arrived."""
        since, until = buffer.departure, buffer.arrival
        if since is None or until is None:
            return
        if buffer.stream is not None:
            until += buffer.stream.delay
        assert isinstance(buffer.positions, slice)
        mesh = buffer.positions.start
        wait = until - self.clock[mesh]
        if wait > 0:
            self.transit[mesh] += min(wait, until - since)
            self.idle[mesh] += wait
            self.clock[mesh] += wait
        self._arrive(buffer)

    def _start(self, step: CommunicationStep, frame: list[Buffer]) -> None:
        """
        Starts asynchronous communication. Meshes go on without waiting, except senders
        that the communication occupies.
        """
        (transfer,) = step.transfers
        meshes = transfer.meshes
        first = meshes[0]
        if step.is_collective:
            with self._clocks_at(first) as clocks:
                arrival = clocks.start(
                    float(transfer.seconds), transfer.axes, transfer.loads
                )
            self._send_off(step, frame, *arrival)
            return
        start = max(float(self.clock[first]), self._free.get(meshes, 0.0))
        end = self._free[meshes] = start + float(transfer.seconds)
        if transfer.occupies:
            wait = end - float(self.clock[first])
            self.idle[first] += wait
            self.transit[first] += wait
            self.clock[first] = end
        self._send_off(step, frame, start, end)

    @property
    def end(self) -> float:
        """
        The time in seconds at which the last mesh and the last communication are done.
        """
        busy = [clocks.busy for clocks in self._clocks_of.values()]
        return max(super().end, *busy, *self._free.values(), 0.0)
