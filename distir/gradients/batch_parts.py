"""The parts of a batch for which batch normalisation computes separate statistics."""

from __future__ import annotations

from dataclasses import dataclass

from distir.errors import DistIRError


@dataclass(frozen=True)
class BatchParts:
    """
    The parts of a batch with separate statistics. Each part holds the samples of one
    micro-batch on one data-parallel device; there are `devices` such devices and
    `micro_batches` micro-batches.
    """

    devices: int = 1
    micro_batches: int = 1

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.devices * self.micro_batches

    def check(self) -> None:
        """
        Raises DistIRError unless the numbers of devices and of micro-batches are
        positive.
        """
        if min(self.devices, self.micro_batches) < 1:
            raise DistIRError(
                f"batch-statistics: {self.devices} devices and {self.micro_batches} "
                "micro-batches; give positive numbers"
            )
