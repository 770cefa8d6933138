"""
The host beside the device: a function takes no less time than the host takes to issue its
ops.

The host of a device issues the ops of a function one after another and runs ahead while the
device works. So a function takes the longer of what its ops take on the device and of what
the host takes to issue them: if the host is slower, all ops are stretched evenly. Only
profiles describe the host; without one nothing happens here.
"""

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
    What one function issues to the devices of a mesh: the seconds that issuing takes, the
    seconds that they communicate and compute, and the steps that compute.
    """

    issuing: float = 0.0
    communicating: float = 0.0
    computing: float = 0.0
    steps: list[ComputationStep] = field(default_factory=list[ComputationStep])


def pace(steps: Sequence[CompiledStep]) -> None:
    """
    Stretches the computations among the steps of one function, in place, so that the ops of
    a mesh together take no less time than the host takes to issue them (`issue`, in
    seconds; 0 without a profile). Asynchronous steps count for neither side.
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
    """Returns a key that is equal for the same devices."""
    if isinstance(positions, slice):
        positions = np.arange(positions.start, positions.stop, dtype=np.intp)
    return np.unique(positions).tobytes()
