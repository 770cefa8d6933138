"""Declares the mesh over which a sequential program is distributed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.device import MOST_DEVICES, ClusterOp, MeshOp
from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.program import functions
from distir.program.unknown_sizes import origin_of_unknown
from distir.sharding.mesh import MESH, TIME_AXIS, Mesh


def check_sequential(module: ModuleOp, what: str) -> None:
    """
    Raises DistIRError if the program is already distributed or has arguments of unknown
    size. The message names the pass `what`.
    """
    for function in functions(module).values():
        for index, type_ in enumerate(function.function_type.inputs.data):
            if layout_of(type_) is not None:
                raise DistIRError(
                    f"{what}: the program is distributed already; start from the "
                    f"sequential one"
                )
            if any(size < 0 for size in shape_of(type_)):
                why = "give it at import, and run fold-shapes"
                if function.body.blocks:  # functions without a body are refused later
                    why = origin_of_unknown(function.args[index])
                raise DistIRError(
                    f"{what}: @{function.sym_name.data} has an argument of unknown "
                    f"size ({type_}): {why}"
                )


def cluster_in(module: ModuleOp, name: str, what: str) -> ClusterOp | None:
    """
    Returns the cluster `name` of the module, or its only cluster if `name` is empty. If
    `name` is given and the module has no cluster, the built-in cluster or the file
    `name` is loaded, added to the module and returned. Returns None if `name` is empty
    and there is no cluster. Raises DistIRError if the cluster does not exist, or if
    `name` is empty and there are several; the message names the pass `what`.
    """
    clusters = [op for op in module.body.block.ops if isinstance(op, ClusterOp)]
    if name and not clusters:
        loaded = load_cluster(name)
        Rewriter.insert_op(loaded, InsertPoint.at_start(module.body.block))
        return loaded
    if name:
        found = [c for c in clusters if c.sym_name.data == name]
        if not found:
            raise DistIRError(
                f"{what}: there is no device.cluster @{name} in the module, which has "
                f"@{clusters[0].sym_name.data}"
            )
        return found[0]
    if len(clusters) > 1:
        raise DistIRError(
            f"{what}: the module has {len(clusters)} clusters; name one with `cluster=`"
        )
    return clusters[0] if clusters else None


def check_size(
    degrees: Sequence[tuple[str, int]], cluster: ClusterOp | None, what: str
) -> None:
    """
    Raises DistIRError if the cluster has too few devices for the axes `degrees` (names
    with sizes), if a size is below 1, or if two axes have the same name. The message
    names the pass `what`.
    """
    for axis, size in degrees:
        if size < 1:
            raise DistIRError(f"{what}: the degree {axis}={size} must be positive")
    names = [axis for axis, _ in degrees]
    for axis in names:
        if names.count(axis) > 1:
            raise DistIRError(f"{what}: there are two axes {axis!r}; give each a name")
    needed = prod(size for _, size in degrees)
    if cluster is not None and needed > cluster.size:
        shown = " x ".join(f"{axis}={size}" for axis, size in degrees)
        raise DistIRError(
            f"{what}: {shown} needs {needed} devices, but cluster "
            f"@{cluster.sym_name.data} has {cluster.size}; lower the degrees or use a "
            f"larger cluster (--devices grows one)"
        )


def _check_positions(axes: Sequence[tuple[str, int]], what: str) -> None:
    """
    Raises DistIRError if a mesh with the axes `axes` would have too many positions (the
    product of their sizes). Micro-batches count like devices. The message names the
    pass `what`.
    """
    positions = prod(size for _, size in axes)
    if positions > MOST_DEVICES:
        shown = " x ".join(f"{axis}={size}" for axis, size in axes)
        raise DistIRError(
            f"{what}: {shown} are {positions} parts of the program; ask for at most "
            f"{MOST_DEVICES}"
        )


def add_mesh(
    module: ModuleOp,
    axes: Sequence[tuple[str, int]],
    cluster: ClusterOp | None,
    what: str = "distribute",
) -> Mesh:
    """
    Declares a mesh with the axes `axes` (names with sizes) on the first devices of a
    cluster, and returns it. Axes of size 1 are left out. Raises DistIRError if the
    cluster has too few devices; the message names the pass `what`.
    """
    check_size([a for a in axes if a[0] != TIME_AXIS], cluster, what)
    return declare_mesh(module, axes, cluster, what)


def declare_mesh(
    module: ModuleOp,
    axes: Sequence[tuple[str, int]],
    cluster: ClusterOp | None,
    what: str,
) -> Mesh:
    """
    Declares a mesh with the axes `axes` (names with sizes) and returns it. Axes of size
    1 are left out. The mesh may be larger than the cluster, for programs that use only
    parts of it. Raises DistIRError if the mesh has too many positions; the message
    names the pass `what`.
    """
    _check_positions(axes, what)
    # An axis of size 1 splits nothing; leaving it out keeps layouts readable. The
    # micro-batch axis stays: it tells `pipeline` which ops run once per micro-batch.
    kept = [(axis, size) for axis, size in axes if size > 1 or axis == TIME_AXIS]
    name = "cluster" if cluster is None else cluster.sym_name.data
    mesh = MeshOp(MESH, name, kept, range(prod(size for _, size in axes)))
    first = module.body.block.first_op
    if cluster is not None:
        module.body.block.insert_op_after(mesh, cluster)
    elif first is not None:
        module.body.block.insert_op_before(mesh, first)
    else:
        module.body.block.add_op(mesh)
    return Mesh.of(mesh)
