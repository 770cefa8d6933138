"""
The communication stream of each device: collectives beside its other work.

A device has a compute stream (the machine's `clock`) and a communication stream. An
asynchronous collective starts when all of its devices have come to it and their
communication streams are free, and occupies these alone. Any other collective occupies both
streams. So collectives of a device never overlap each other, in the order of the program.
(Asynchronous sends have streams of their own, one for each pair of devices.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distir.interpreters.simulator.engine.transfers import Transfer

Array = npt.NDArray[np.float64]


class CommunicationStreams:
    """
    Until when each device's communication stream is busy (`free`), and since when it has
    been without a pause (`since`), in seconds. `in_use`: something was asynchronous; until
    then a stream is never busier than its device.
    """

    def __init__(self, devices: int):
        self.free = np.zeros(devices)
        self.since = np.zeros(devices)
        self.in_use = False

    def start(self, transfer: Transfer, clock: Array) -> tuple[Array, Array]:
        """
        Starts an asynchronous collective that each device has come to at its `clock`, in
        seconds. Gives two arrays with one entry per group of devices: when it starts and when
        it is done.
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
        Before a collective that occupies both streams of its devices: they wait until their
        communication streams are free. Moves their `clock` on, and adds the seconds waited to
        their entries of `idle`, and those in which something was being sent to `transit`.
        """
        rows = transfer.positions
        waits = np.maximum(self.free[rows] - clock[rows], 0.0)
        transit[rows] += np.minimum(waits, self.free[rows] - self.since[rows])
        idle[rows] += waits
        clock[rows] += waits

    def occupy(self, transfer: Transfer, end: Array) -> None:
        """
        After a collective that occupied both streams: those of communication are free from
        `end` on, one moment in seconds per group.
        """
        self.free[transfer.positions] = end[:, None]
        self.since[transfer.positions] = end[:, None]
