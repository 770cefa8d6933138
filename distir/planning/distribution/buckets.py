"""
Chooses, from the latency of the cluster, the size of messages that carry several
collectives.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllReduceOp
from distir.dialects.dist import layout_of
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    of_kind,
    topology,
)
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.planning.distribution.meshes import cluster_in
from distir.sharding.mesh import Mesh, meshes
from distir.transforms.bucketing import bucket_collectives

_SHARE = 0.05
"""The largest fraction of a message's time that latency may take."""

_LEAST, _MOST = 1 << 20, 1 << 40
"""
The range, in bytes, in which message sizes are searched. At the upper end latency never
matters.
"""


def bucket_collectives_of(module: ModuleOp, megabytes: float | None = None) -> None:
    """
    Combines collectives of a distributed program into buckets, in place. A bucket holds
    at most `megabytes` (in 1e6 bytes) on a device. By default, buckets are so large
    that latency takes at most a twentieth of a message's time on the program's cluster.
    Raises DistIRError if `megabytes` is not above 0.
    """
    if megabytes is not None:
        if not megabytes > 0:
            raise DistIRError(
                f"bucket-collectives: a message cannot hold {megabytes:g} megabytes; "
                f"choose a number above 0"
            )
        bucket_collectives(module, lambda first: megabytes * 1e6)
        return
    cluster = cluster_in(module, "", "bucket-collectives")
    hardware = None if cluster is None else Hardware.of(cluster)
    bucket_collectives(module, MessageSizes(hardware, meshes(module)).limit)


class MessageSizes:
    """
    The message sizes, in bytes, from which latency hardly matters. A size depends on
    the kind of the message and on the links that the message crosses.

    `hardware` is the cluster. `known` maps symbols to the meshes on the cluster. The
    size is `DEFAULT` if there is no cluster, or if the cluster has fewer devices than a
    mesh.
    """

    DEFAULT = 25e6
    """The bucket size of PyTorch's DistributedDataParallel, in bytes."""

    def __init__(self, hardware: Hardware | None, known: Mapping[str, Mesh]):
        self.hardware = hardware
        self.meshes = known
        self.known: dict[tuple[Attribute | str | bool | None, ...], float] = {}

    def limit(self, first: CollectiveOp) -> float:
        """
        Returns the size, in bytes, from which latency hardly matters for a message
        whose first collective is `first`.
        """
        if first.message not in self.known:
            self.known[first.message] = self._limit(first)
        return self.known[first.message]

    def _limit(self, first: CollectiveOp) -> float:
        layout = layout_of(first.source)
        assert layout is not None  # the op's verifier
        mesh = self.meshes[layout.mesh]
        if self.hardware is None or max(mesh.devices) >= len(self.hardware.kinds):
            return self.DEFAULT
        group = next(iter(mesh.groups(first.axis_names)))
        kind = first.name.removeprefix("collective.")
        stages = of_kind(kind, topology(group, self.hardware))
        seconds = all_gather_seconds
        if isinstance(first, AllReduceOp):
            seconds = all_reduce_seconds
        each = seconds(_MOST, stages) / _MOST
        size = _LEAST
        while size < _MOST and seconds(size, stages) * (1 - _SHARE) > size * each:
            size *= 2
        return size
