"""Distributing a program by the layouts that a search finds for a whole mesh."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import MeshOp
from distir.errors import DistIRError
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.distribute import add_mesh, cluster_in, request_shards
from distir.passes.partition import PartitionPass
from distir.passes.search.grid import Configuration
from distir.passes.search.requests import Requests, axes_of, keep_whole, least_memory
from distir.passes.search.sharding import Found, Limits, search_sharding
from distir.sharding.mesh import Mesh

_GAP = 1e-3
"""How much dearer than the best the layouts may be: what `search-sharding` allows."""


def distribute_searched(
    context: Context, module: ModuleOp, configuration: Configuration, requests: Requests
) -> Found:
    """
    Distributes a program over the axes of a configuration, or over the mesh that the module
    has, with the layouts that take the least time within the memory of the devices. Raises
    DistIRError.
    """
    what = "auto-parallel"
    cluster = cluster_in(module, "", what)
    if cluster is None:
        raise DistIRError(f"{what}: the module has no device.cluster; add one")
    ActivationCheckpointPass(configuration.checkpoint).apply(context, module)
    own = [op for op in module.body.block.ops if isinstance(op, MeshOp)]
    axes = axes_of(configuration.axes.split(","))
    mesh = Mesh.of(own[0]) if own else add_mesh(module, axes, cluster, what)
    request_shards(module, mesh, requests.shard)
    keep_whole(module, mesh, requests.whole)
    limits = Limits(
        least_memory(cluster, mesh), "auto", gap=_GAP, seconds=requests.seconds
    )
    found = search_sharding(module, mesh, cluster, limits)
    PartitionPass().apply(context, module)
    return found
