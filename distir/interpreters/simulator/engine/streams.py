"""
The communication streams of devices.

A device has a compute stream, and one communication stream for each kind of group that
it communicates in: for each set of mesh axes. NCCL and PyTorch likewise have one stream
for each process group. There are three rules:

- The asynchronous collectives of one stream run one after the other, in program order.
  A blocking collective waits for earlier collectives of its own stream, and occupies
  the compute stream.
- An asynchronous collective runs beside the collectives of other streams, and gets the
  rest of the links (`left_by`). Collectives that need the same links whole therefore
  take turns.
- A blocking collective and the asynchronous collectives of other streams share links
  fairly (`fair_rates`), so all of them take longer. Of the other streams, only the
  busiest is considered.

Asynchronous sends have streams of their own, one for each pair of devices, and share
nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distir.interpreters.simulator.costs.shared_links import (
    Loads,
    fair_rates,
    left_by,
)
from distir.interpreters.simulator.engine.computations import Seconds
from distir.interpreters.simulator.engine.device_map import Positions
from distir.interpreters.simulator.engine.transfers import Transfer

Array = npt.NDArray[np.float64]


class DeviceStream:
    """
    The communication stream of one set of mesh axes on all devices. Arrays have one
    entry per device. `free` is the time in seconds at which the stream becomes free.
    `delay` is the number of seconds by which blocking collectives have delayed the
    stream so far; the increase since the start of a collective delays this collective's
    arrival. `loads` is the index of the last collective's loads.
    """

    def __init__(self, devices: int):
        self.free = np.zeros(devices)
        self.delay = np.zeros(devices)
        self.loads = np.zeros(devices, dtype=np.intp)


class CommunicationStreams:
    """
    The communication streams of all devices. Arrays have one entry per device.

    - `by_axes`: the streams that any asynchronous collective has used, by mesh axes;
    - `busy`: the time in seconds until which any stream is busy; `since`: the start of
      the period in which a stream has been busy without a pause;
    - `slowed`, `shared`: the seconds by which collectives in flight have lengthened
      computations, and blocking collectives.

    While a stream is busy, a device computes more slowly by the share that its profile
    gives, because kernels of collectives occupy multiprocessors too.
    """

    def __init__(self, devices: int):
        self.by_axes: dict[tuple[str, ...], DeviceStream] = {}
        self.busy = np.zeros(devices)
        self.since = np.zeros(devices)
        self.slowed = np.zeros(devices)
        self.shared = np.zeros(devices)
        self._loads: dict[Loads, int] = {(): 0}

    def beside(
        self, positions: Positions, clock: Array, seconds: Seconds, contention: Array
    ) -> Seconds:
        """
        Returns the seconds of a computation that the devices at `positions` begin at
        their `clock`. The computation takes `seconds` if no stream is busy.
        `contention` is the share of a device that computations lose while a stream is
        busy.
        """
        share, busy = contention[positions], self.busy[positions]
        alone = np.minimum(np.maximum(self.since[positions] - clock, 0.0), seconds)
        together = np.maximum(busy - clock - alone, 0.0)
        slowed = share * np.minimum((seconds - alone) / (1 - share), together)
        self.slowed[positions] += slowed
        return seconds + slowed

    def start(self, transfer: Transfer, clock: Array) -> tuple[DeviceStream, Array]:
        """
        Starts an asynchronous collective that each device reaches at its `clock`, in
        seconds. Returns the collective's stream, and its start times, one per group of
        devices.
        """
        rows = transfer.positions
        own = self.by_axes.get(transfer.axes)
        if own is None:
            own = self.by_axes[transfer.axes] = DeviceStream(len(self.busy))
        begin = np.maximum(clock[rows], own.free[rows]).max(axis=1)
        begin += self._queued(transfer, own, begin)
        end = begin + transfer.seconds
        starts = begin[:, None]
        pauses = self.busy[rows] < starts
        self.since[rows] = np.where(
            pauses, starts, np.minimum(self.since[rows], starts)
        )
        self.busy[rows] = np.maximum(self.busy[rows], end[:, None])
        own.free[rows] = end[:, None]
        if transfer.loads:
            index = self._loads.setdefault(transfer.loads, len(self._loads))
            own.loads[rows] = index
        return own, begin

    def _queued(self, transfer: Transfer, own: DeviceStream, begin: Array) -> Array:
        """
        Returns the seconds by which the asynchronous collectives of other streams delay
        a collective that could start at `begin`. Both have one entry per group of
        devices.
        """
        rows = transfer.positions
        longest = np.zeros_like(begin)
        for other in self.by_axes.values():
            left = np.maximum(other.free[rows] - begin[:, None], 0.0)
            if other is own or not left.any():
                continue
            speeds = [left_by(each, transfer.loads) for each in self._loads]
            speed = np.array(speeds)[other.loads[rows]]
            alone = np.reshape(transfer.seconds, (-1, 1))
            whole = np.full_like(left, np.inf)
            np.divide(np.broadcast_to(alone, left.shape), speed, whole, where=speed > 0)
            lost = np.minimum(whole, left) * (1 - speed)
            longest = np.maximum(longest, lost.max(axis=1))
        return longest

    def join(
        self, transfer: Transfer, clock: Array, idle: Array, transit: Array
    ) -> None:
        """
        Makes the devices of a blocking collective wait until its stream is free.
        Advances their `clock`, and adds the seconds waited to `idle`. The seconds in
        which an earlier collective was in progress are added to `transit` too.
        """
        own = self.by_axes.get(transfer.axes)
        if own is None:
            return
        rows = transfer.positions
        waits = np.maximum(own.free[rows] - clock[rows], 0.0)
        busy = np.maximum(own.free[rows] - self.since[rows], 0.0)
        transit[rows] += np.minimum(waits, busy)
        idle[rows] += waits
        clock[rows] += waits

    def share(self, transfer: Transfer, start: Array) -> Seconds:
        """
        Returns the seconds of a blocking collective that starts at `start`, and delays
        the collectives in flight that share its links. `start` and the result have one
        entry per group of devices.
        """
        rows = transfer.positions
        seconds = np.reshape(transfer.seconds, (-1, 1))
        longest = np.zeros_like(start)
        for axes, other in self.by_axes.items():
            left = np.maximum(other.free[rows] - start[:, None], 0.0)
            if axes == transfer.axes or not left.any():
                continue
            rates = [fair_rates(transfer.loads, each) for each in self._loads]
            own_rate, other_rate = np.array(rates)[other.loads[rows]].T
            own_rate, other_rate = own_rate.T, other_rate.T
            together = np.minimum(seconds / own_rate, left / other_rate)
            longest = np.maximum(longest, (together * (1 - own_rate)).max(axis=1))
            delay = together * (1 - other_rate)
            other.delay[rows] += delay
            other.free[rows] += delay
            self.busy[rows] = np.maximum(self.busy[rows], other.free[rows])
        self.shared[rows] += longest[:, None]
        return transfer.seconds + longest
