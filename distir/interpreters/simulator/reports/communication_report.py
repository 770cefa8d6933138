"""Reports the bytes that devices send in a step, by module, op and mesh axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.collective_ops.base import CollectiveOp
from distir.interpreters.simulator.engine.compiled import CommunicationStep
from distir.interpreters.simulator.engine.following import Follower
from distir.interpreters.simulator.engine.machine import Execution
from distir.interpreters.simulator.engine.run import DeviceGroup
from distir.interpreters.simulator.engine.scopes import ScopeCache, pattern
from distir.interpreters.simulator.reports.group_rows import GroupRows
from distir.interpreters.simulator.simulation import Simulation
from distir.sharding.exchanges import exchanged_axes


@dataclass
class Sent:
    """
    The messages of one kind of op in one module, sent in a step by the device that
    sends the most.

    Attributes:
        scope: The module, with `*` for the number of its layer if layers are combined.
        op: The name of the op.
        axes: The mesh axes over which a collective communicates.
        times: The number of messages.
        size: The number of bytes in all messages.
    """

    scope: str
    op: str
    axes: tuple[str, ...]
    times: int = 0
    size: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as JSON data."""
        return {
            "scope": self.scope,
            "op": self.op,
            "axes": list(self.axes),
            "times": self.times,
            "bytes": self.size,
        }


Key = tuple[str, str, tuple[str, ...]]
"""The module, the name of the op, and the mesh axes."""


class CommunicationRecorder(Follower):
    """
    Counts the messages of each group of devices in `groups`, and their bytes, by op and
    mesh axes. The recorder follows one device per group. With `by_layer`, each layer of
    the model is counted separately; otherwise all layers are counted together.
    """

    def __init__(self, groups: Sequence[DeviceGroup], by_layer: bool = False):
        self._rows = GroupRows(groups)
        self._by_layer = by_layer
        self._scope = ScopeCache()
        self._keys: dict[tuple[CommunicationStep, str], Key] = {}
        self._sent: list[dict[Key, Sent]] = [{} for _ in groups]

    def ran(self, execution: Execution) -> None:
        step, path, positions, _, _ = execution
        if not isinstance(step, CommunicationStep):
            return
        rows = self._rows.among(positions)
        if not rows:
            return
        messages, sizes = _messages(step, np.asarray(positions))
        key = self._key(step, self._scope(step.op, path))
        for row, offset in rows:
            sent = self._sent[row].get(key)
            if sent is None:
                sent = self._sent[row][key] = Sent(*key)
            sent.times += messages
            sent.size += float(sizes[offset])

    def _key(self, step: CommunicationStep, scope: str) -> Key:
        key = self._keys.get((step, scope))
        if key is None:
            op = step.op
            is_collective = isinstance(op, CollectiveOp)
            axes = op.axis_names if is_collective else exchanged_axes(op)
            name = scope if self._by_layer else pattern(scope)
            key = self._keys[step, scope] = name, op.name, axes
        return key

    def report(self) -> list[Sent]:
        """
        Returns the messages of the device that sends the most, for each module, op and
        axes, in the order in which they first occur. Call this method after the program
        has been executed.
        """
        most: dict[Key, Sent] = {}
        for of_group in self._sent:
            for key, sent in of_group.items():
                if key not in most or most[key].size < sent.size:
                    most[key] = sent
        return list(most.values())


def _messages(
    step: CommunicationStep, positions: npt.NDArray[np.intp]
) -> tuple[int, npt.NDArray[Any]]:
    """
    Returns the number of messages of the transfer to which `positions` belong, and the
    bytes that each position sends. A position is the index of a device in the machine's
    arrays.
    """
    for transfer in step.transfers:
        if np.array_equal(transfer.positions.ravel(), positions):
            return transfer.messages, transfer.sent.ravel()
    return 1, np.zeros(len(positions))


def communication_of(simulation: Simulation, by_layer: bool = False) -> list[Sent]:
    """
    Executes a simulated program once more, and returns the messages of its devices.
    Layers that send the same kinds of messages are combined into one entry, unless
    `by_layer` is set.
    """
    recorder = CommunicationRecorder(simulation.groups, by_layer)
    simulation.run.follow(recorder)
    return recorder.report()
