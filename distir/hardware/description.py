"""
Builds a cluster from a few numbers: the kind of its devices, the number of devices per
node, and the network between nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, i64

from distir.dialects.device import MOST_DEVICES, ClusterOp, KindOp, LinkOp
from distir.errors import DistIRError, did_you_mean
from distir.hardware import cluster_names, load_cluster

NIC_LATENCY = 1e-5
"""The latency of a message between nodes in seconds. It is a rough estimate."""


@dataclass(frozen=True)
class ClusterDescription:
    """
    A short description of a cluster of equal nodes.

    Attributes:
        name: The name of the cluster, an identifier.
        kind: The kind of its devices, one of `device_kinds()`.
        nodes: The number of nodes.
        devices_per_node: The number of devices of each node.
        nic: The bandwidth of one network adapter, in bytes/s per direction; None if a
            single node has no adapter.
        nics_per_node: The number of network adapters of each node; None for one per
            device. If there are fewer adapters than devices, the devices of a node
            share them.
        nic_kind: The kind of network, such as infiniband, roce or ethernet; None for
            the network of the built-in cluster with this kind of device.
        link: The bandwidth from a device to the others of its node, in bytes/s per
            direction; None for the bandwidth in the built-in cluster with this kind of
            device.
        memory: The usable memory of a device in bytes; None for the memory of its kind.
    """

    name: str
    kind: str
    nodes: int
    devices_per_node: int
    nic: float | None = None
    nics_per_node: int | None = None
    nic_kind: str | None = None
    link: float | None = None
    memory: int | None = None

    def build(self) -> ClusterOp:
        """
        Returns the cluster as an op. Raises DistIRError if `name` is not an identifier,
        if `kind` is not a known kind of device, if there are too many devices, if there
        are several nodes and `nic` is None, or if the adapters of a node cannot be
        divided evenly among its devices.
        """
        if not self.name.isidentifier():
            raise DistIRError(
                f"{self.name!r} cannot be the name of a cluster, which is letters, digits and "
                f"underscores and does not begin with a digit; give another one with --name"
            )
        size = self.nodes * self.devices_per_node
        if size > MOST_DEVICES:
            raise DistIRError(
                f"a cluster cannot have {size} devices; at most {MOST_DEVICES} are possible"
            )
        kinds = device_kinds()
        if self.kind not in kinds:
            raise DistIRError(
                f"there is no kind of device {self.kind!r}; "
                f"{did_you_mean(self.kind, kinds)}choose from {', '.join(kinds)}, or describe the device in a file (docs/clusters.md)"
            )
        original = kinds[self.kind]
        kind = _with_devices(original.kinds[0], size, self.memory)
        return ClusterOp(self.name, [kind], self._links(original.links, size))

    def _links(self, originals: Sequence[LinkOp], size: int) -> list[LinkOp]:
        """
        Returns the links of the cluster, one op per level, innermost first. `originals`
        are the links of the built-in cluster with the same kind of device.
        """
        node, original = self.devices_per_node, originals[0]
        rate = original.bandwidth.value.data if self.link is None else self.link
        latency = original.latency.value.data
        inner = LinkOp(original.sym_name.data, node, bandwidth=rate, latency=latency)
        if self.nic is None:
            if self.nodes > 1:
                raise DistIRError(
                    f"{self.nodes} nodes are connected by network adapters; say what one "
                    f"sends, such as --nic 200Gb/s"
                )
            return [inner]
        adapters = node if self.nics_per_node is None else self.nics_per_node
        if adapters > node and adapters % node:
            raise DistIRError(
                f"{adapters} network adapters cannot be dealt out to the {node} devices of a "
                f"node evenly"
            )
        # A device uses all of its own adapters, but only one shared adapter.
        own = max(1, adapters // node) * self.nic
        shared = adapters * self.nic if adapters < node else None
        fabric = originals[-1].kind_name if len(originals) > 1 else None
        network = LinkOp(
            "network",
            size,
            bandwidth=own,
            latency=NIC_LATENCY,
            block_bandwidth=shared,
            kind=self.nic_kind or fabric,
        )
        return [inner, network]


def device_kinds() -> dict[str, ClusterOp]:
    """
    Returns the kinds of devices of the built-in clusters, in alphabetical order: a map
    from the name of each kind to the alphabetically first cluster that has devices of
    this kind.
    """
    found: dict[str, ClusterOp] = {}
    for name in cluster_names():
        cluster = load_cluster(name)
        found.setdefault(cluster.kinds[0].sym_name.data, cluster)
    return dict(sorted(found.items()))


def _with_devices(kind: KindOp, size: int, memory: int | None) -> KindOp:
    copy = kind.clone()
    copy.devices = type(kind.devices)(tuple(range(size)))
    if memory is not None:
        copy.memory = IntegerAttr(memory, i64)
    return copy
