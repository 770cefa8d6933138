"""A measurement and its prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from distir.interpreters.simulator import Simulation


@dataclass(frozen=True)
class Row:
    """
    A measurement and its prediction.

    - `name`: the configuration, unique in its file;
    - `measured`: seconds;
    - `ideal`: seconds at the peak of all devices (or at the bandwidth of a link), which the
      baseline divides by one constant efficiency;
    - `predict`: returns the predicted seconds, or a simulation that has them; it is called in
      other processes;
    - `hardware`: the devices of a row to which no profile was fitted, such as `H100`; empty
      for rows of files of which profiles may be fitted to two thirds;
    - `source`: who published the row, in a word or two.
    """

    name: str
    measured: float
    ideal: float
    predict: Callable[[], float | Simulation]
    hardware: str = ""
    source: str = ""

    @property
    def is_held_out(self) -> bool:
        """
        Whether the row is among the third of all rows, chosen by their names, that nothing
        may be fitted to, or of a file that nothing was fitted to.
        """
        if self.hardware:
            return True
        return crc32(self.name.encode()) % 3 == 0
