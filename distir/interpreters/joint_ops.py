"""
Runs ops in which devices exchange values while they compute. Each device of a group
runs in its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr
from xdsl.interpreter import PythonValues
from xdsl.ir import Operation

from distir.dialects.registries import Registry
from distir.sharding.mesh import Mesh

Array = npt.NDArray[Any]


class Peers:
    """
    The group of devices with which a device exchanges arrays. This base class
    represents a group of one device, so nothing is exchanged.
    """

    def gather(self, x: Array) -> Array:
        """
        Returns the arrays `x` of all devices of the group, joined along the last
        dimension.
        """
        return x

    @property
    def position(self) -> int:
        """This device's index in the group."""
        return 0

    def all(self, x: Array) -> list[Array]:
        """Returns the arrays `x` of all devices of the group, in order."""
        return [x]

    def scatter(self, x: Array) -> Array:
        """
        Returns this device's part of the sum of all devices' arrays `x`. The sum is
        split along the last dimension.
        """
        return x


class _Meeting:
    """
    Exchanges arrays among the `size` devices of a group. When a sum is scattered, the
    devices get the elements of its last dimension in turn, `run` consecutive elements
    at a time. If `run` is None, each device gets one contiguous block.
    """

    def __init__(self, size: int, run: int | None):
        self.run = run
        self.held: list[Array] = [np.empty(0)] * size
        self.barrier = Barrier(size)


class _Peer(Peers):
    """
    A group of several devices, as seen by the device at index `position`. All devices
    must call the same methods in the same order.
    """

    def __init__(self, meeting: _Meeting, position: int):
        self.meeting = meeting
        self._position = position

    @property
    def position(self) -> int:
        return self._position

    def gather(self, x: Array) -> Array:
        parts = self.all(x)
        run = self.meeting.run or x.shape[-1]
        runs = np.stack([p.reshape(*p.shape[:-1], -1, run) for p in parts], -2)
        return runs.reshape(*x.shape[:-1], -1)

    def scatter(self, x: Array) -> Array:
        parts = self.all(x)
        total = np.sum(parts, axis=0)
        run = self.meeting.run or x.shape[-1] // len(parts)
        runs = total.reshape(*x.shape[:-1], -1, len(parts), run)
        return runs[..., self.position, :].reshape(*x.shape[:-1], -1)

    def all(self, x: Array) -> list[Array]:
        self.meeting.held[self.position] = x
        self.meeting.barrier.wait()
        found = list(self.meeting.held)
        self.meeting.barrier.wait()
        return found


JointFunction = Callable[[Operation, Peers, PythonValues], PythonValues]

joint_op = Registry[JointFunction]("distir.interpreters.train")
"""
Registers the function that computes ops with the given names on one device. The
function takes the op in its local form, the device's `Peers` and its operands, and
returns its results.
"""


def _group_axes(op: Operation) -> tuple[str, ...]:
    """
    Returns the mesh axes over which devices exchange values for `op`, an op in its
    local form. Returns an empty tuple if the op is not registered as a joint op.
    """
    axes = op.properties.get("axes")
    if joint_op.get(op.name) is None or not isinstance(axes, ArrayAttr):
        return ()
    return tuple(a.data for a in axes.data if isinstance(a, StringAttr))


def run_together(
    members: Sequence[tuple[Operation, PythonValues]],
) -> list[PythonValues]:
    """
    Runs a joint op on the devices of one group, and returns the results of each device.
    `members` holds, for each device, the op in its local form and the operands. Raises
    the exception of a device that fails.
    """
    first, _ = members[0]
    run, function = first.properties.get("run"), joint_op.get(first.name)
    assert function is not None
    meeting = _Meeting(
        len(members), run.value.data if isinstance(run, IntegerAttr) else None
    )

    def compute(position: int) -> PythonValues:
        try:
            return function(
                members[position][0], _Peer(meeting, position), members[position][1]
            )
        except BaseException:
            meeting.barrier.abort()  # nobody waits for this device any more
            raise

    from concurrent.futures import ThreadPoolExecutor  # importing it is slow

    with ThreadPoolExecutor(len(members)) as pool:
        futures = [pool.submit(compute, i) for i in range(len(members))]
    errors = [e for f in futures if (e := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


def results_on(
    mesh: Mesh, members: Sequence[tuple[Operation, PythonValues]]
) -> list[PythonValues]:
    """
    Runs a joint op on all devices of a mesh, group by group, and returns the results of
    each device. `members` holds, for each device, the op in its local form and the
    operands.
    """
    found: dict[int, PythonValues] = {}
    for group in mesh.groups(_group_axes(members[0][0])):
        places = [mesh.devices.index(device) for device in group]
        results = run_together([members[i] for i in places])
        found.update(zip(places, results, strict=True))
    return [found[i] for i in range(len(members))]
