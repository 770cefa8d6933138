"""The links between the ranks of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from distir.interpreters.simulator.costs.communication import send_seconds, sharing_of
from distir.interpreters.simulator.costs.hardware import Hardware

_MESSAGE = 2**20
"""The size in bytes of the message by which links are compared."""


@dataclass(frozen=True)
class RankLink:
    """
    The slowest link between devices of neighbouring pipeline ranks.

    - `source`, `target`: the devices at the two ends of the link;
    - `sharing`: the number of devices that send over the link at the same time. Each
      device of a rank sends to the device at the same position in the next rank.
    """

    hardware: Hardware
    source: int = 0
    target: int = 0
    sharing: int = 1

    @staticmethod
    def slowest(hardware: Hardware, ranks: int, devices: int) -> RankLink:
        """
        Returns the slowest link between any two neighbouring ranks, for `ranks` ranks
        of `devices` devices each.
        """
        found = [RankLink(hardware)]
        for rank in range(ranks - 1):
            first = rank * devices
            pairs = [(first + i, first + devices + i) for i in range(devices)]
            pair = max(pairs, key=lambda p: send_seconds(_MESSAGE, *p, hardware))
            found.append(RankLink(hardware, *pair, sharing_of(pairs, pair, hardware)))
        return max(found, key=lambda link: link.seconds(_MESSAGE))

    def seconds(self, size: float) -> float:
        """
        Returns the seconds of sending `size` bytes over the link; 0 if the pipeline has
        one rank.
        """
        return send_seconds(size, self.source, self.target, self.hardware, self.sharing)
