"""A measurement and its prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class Row:
    """
    - `name`: the configuration, unique in its file;
    - `measured`: seconds;
    - `ideal`: seconds at the peak of all devices (or at the bandwidth of a link): what the
      baseline of one constant efficiency divides by its constant;
    - `predict`: gives the predicted seconds. Other processes call it.
    """

    name: str
    measured: float
    ideal: float
    predict: Callable[[], float]

    @property
    def is_held_out(self) -> bool:
        """A third of all rows, chosen by their names, that nothing may be fitted to."""
        return crc32(self.name.encode()) % 3 == 0
