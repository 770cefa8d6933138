"""
The communication stream of each device: collectives that run beside computation.

A device has a compute stream (the machine's `clock`) and a communication stream. An
asynchronous collective starts when all of its devices have reached it and their
communication streams are free, and occupies only these. Any other collective occupies both
streams. So collectives of a device never overlap each other, and run in program order.
While its communication stream is busy, a device computes more slowly by the share that its
profile gives (`contention`): kernels of collectives occupy multiprocessors too.
(Asynchronous sends have streams of their own, one for each pair of devices.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distir.interpreters.simulator.engine.computations import Seconds
from distir.interpreters.simulator.engine.device_map import Positions
from distir.interpreters.simulator.engine.transfers import Transfer

Array = npt.NDArray[np.float64]


class CommunicationStreams:
    """
    The times in seconds until which each device's communication stream is busy (`free`),
    and since when it has been busy without a pause (`since`). `in_use` says whether
    anything was asynchronous; until then a stream is never busier than its device.
    `contention` is the share of each device that is taken from computations meanwhile, None
    if it is 0 for all; `slowed` are the seconds by which computations took longer.
    """

    def __init__(self, devices: int):
        self.free = np.zeros(devices)
        self.since = np.zeros(devices)
        self.in_use = False
        self.contention: Array | None = None
        self.slowed = np.zeros(devices)

    def beside(self, positions: Positions, clock: Array, seconds: Seconds) -> Seconds:
        """
        Returns the seconds of a computation that these devices begin at their `clock` and
        that takes `seconds` while nothing is communicated.
        """
        assert self.contention is not None
        share, free = self.contention[positions], self.free[positions]
        alone = np.minimum(np.maximum(self.since[positions] - clock, 0.0), seconds)
        together = np.maximum(free - clock - alone, 0.0)
        slowed = share * np.minimum((seconds - alone) / (1 - share), together)
        self.slowed[positions] += slowed
        return seconds + slowed

    def start(self, transfer: Transfer, clock: Array) -> tuple[Array, Array]:
        """
        Starts an asynchronous collective that each device reaches at its `clock`, in
        seconds. Returns when it starts and when it is done, as arrays with one entry per
        group of devices.
        """
        self.in_use = True
        rows = transfer.positions
        begin = np.maximum(clock[rows], self.free[rows]).max(axis=1)
        end = begin + transfer.seconds
        pauses = self.free[rows] < begin[:, None]
        self.since[rows] = np.where(pauses, begin[:, None], self.since[rows])
        self.free[rows] = end[:, None]
        return begin, end

    def join(
        self, transfer: Transfer, clock: Array, idle: Array, transit: Array
    ) -> None:
        """
        Makes the devices of a synchronous collective, which occupies both streams, wait
        until their communication streams are free. Advances their `clock`, adds the seconds
        waited to their entries of `idle`, and those in which something was being sent to
        `transit`.
        """
        rows = transfer.positions
        waits = np.maximum(self.free[rows] - clock[rows], 0.0)
        transit[rows] += np.minimum(waits, self.free[rows] - self.since[rows])
        idle[rows] += waits
        clock[rows] += waits

    def occupy(self, transfer: Transfer, end: Array) -> None:
        """
        Marks the communication streams as free from `end` on (one time in seconds per
        group), after a collective that occupied both streams.
        """
        self.free[transfer.positions] = end[:, None]
        self.since[transfer.positions] = end[:, None]
