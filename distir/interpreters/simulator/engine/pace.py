"""Lets computations last as long as their host needs to issue ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from distir.interpreters.simulator.engine.compiled import (
    CommunicationStep,
    CompiledStep,
    ComputationStep,
    OpStep,
)
from distir.interpreters.simulator.engine.device_map import Positions


@dataclass
class _Queue:
    """
    The ops that one function issues to the devices of a mesh, with three sums of
    seconds: `issuing` (of the host), `communicating` and `computing` (of the devices).
    `steps` holds the ops that compute.
    """

    issuing: float = 0.0
    communicating: float = 0.0
    computing: float = 0.0
    steps: list[ComputationStep] = field(default_factory=list[ComputationStep])


def pace(steps: Sequence[CompiledStep]) -> None:
    """
    Lengthens the computations of one function's `steps`, in place, so that the ops of
    each mesh take at least as long as the host needs to issue them. The host's time for
    a mesh is the sum of the `issue` times, in seconds, of the steps on the mesh; without
    a profile these are 0. Asynchronous steps are ignored.
    """
    queues: dict[bytes, _Queue] = {}
    for step in steps:
        if not isinstance(step, OpStep) or not step.issue:
            continue
        if isinstance(step, CommunicationStep):
            if step.is_asynchronous:
                continue
            seconds = sum(float(np.max(t.seconds)) for t in step.transfers)
            queue = queues.setdefault(_key(step.transfers[0].positions), _Queue())
            queue.communicating += seconds
        else:
            assert isinstance(step, ComputationStep)
            queue = queues.setdefault(_key(step.positions), _Queue())
            queue.computing += float(np.max(step.seconds))
            queue.steps.append(step)
        queue.issuing += step.issue
    for queue in queues.values():
        missing = queue.issuing - queue.communicating - queue.computing
        if missing > 0 and queue.computing:
            for step in queue.steps:
                step.seconds = step.seconds * (1 + missing / queue.computing)


def _key(positions: Positions) -> bytes:
    """Returns a key that is equal for equal sets of devices."""
    if isinstance(positions, slice):
        return np.arange(positions.start, positions.stop, dtype=np.intp).tobytes()
    ordered = np.sort(
        positions, axis=None
    )  # not `np.unique`, which imports half of NumPy
    is_new = np.ones(len(ordered), bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new].tobytes()
