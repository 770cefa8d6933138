"""The error for a problem without a choice."""

from __future__ import annotations

from collections.abc import Sequence

from distir.errors import DistIRError


class InfeasibleError(DistIRError):
    """
    Raised if no choice is possible, or none was found that fits in memory.

    - `nodes`: those that are to blame; under a memory limit those that occupy the most at
      the peak of the smallest choice found, largest first.
    - `peak`: the smallest peak found, in bytes; None if the limit is not to blame.
    - `least`: no choice has a smaller peak than this.
    - `proven`: whether there is no choice; otherwise none was found in the time.
    """

    def __init__(
        self,
        message: str,
        nodes: Sequence[int],
        peak: float | None = None,
        least: float | None = None,
        proven: bool = True,
    ):
        super().__init__(message)
        self.nodes = tuple(nodes)
        self.peak = peak
        self.least = least
        self.proven = proven
