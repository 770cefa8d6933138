"""Finds the devices that represent groups among the devices that run an op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distir.interpreters.simulator.engine.device_map import Positions
from distir.interpreters.simulator.engine.run import DeviceGroup

_FEW = 8


class GroupRows:
    """
    The devices that represent groups of devices. The row of such a device is the index
    of its group in `groups`.
    """

    def __init__(self, groups: Sequence[DeviceGroup]):
        self._row = {group.position: row for row, group in enumerate(groups)}
        self._found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._is_one = np.zeros(max(self._row, default=0) + 1, dtype=bool)
        self._is_one[list(self._row)] = True

    def among(
        self, positions: Positions | npt.NDArray[np.intp]
    ) -> list[tuple[int, int]]:
        """
        Returns, for each device in `positions` that represents a group, the index of
        its group in `groups` and its own index in `positions`.
        """
        if isinstance(positions, slice):
            key = (positions.start, positions.stop)
            if key not in self._found:
                self._found[key] = [
                    (row, position - positions.start)
                    for position, row in self._row.items()
                    if positions.start <= position < positions.stop
                ]
            return self._found[key]
        if len(positions) > _FEW:
            known = np.minimum(positions, len(self._is_one) - 1)
            places = np.nonzero(self._is_one[known] & (known == positions))[0]
            return [(self._row[int(positions[i])], int(i)) for i in places]
        return [
            (self._row[position], i)
            for i, position in enumerate(positions.tolist())
            if position in self._row
        ]
