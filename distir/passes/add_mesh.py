"""`add-mesh`: declares the mesh of devices for the distribution of a program."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.hardware.options import TargetOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.pipelining.options import axes_of
from distir.planning.distribution.meshes import add_mesh, check_sequential, cluster_in


@dataclass(frozen=True)
class AddMeshPass(DistIRPass):
    """
    Declares a mesh on the first devices of a cluster, in a sequential program. Passes
    that annotate arguments name the axes of this mesh.

    - `axes`: `NAME=SIZE` for each axis, outermost first; axes of size 1 are left out.
    - `cluster`: the symbol of the module's `device.cluster`; unnecessary if the module
      has one cluster or none. If the module has none: the name of a built-in cluster,
      or a cluster file.
    """

    name = "add-mesh"

    axes: tuple[str, ...] = ()
    cluster: str = same_option(TargetOptions, "cluster")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_sequential(op, self.name)
        cluster = cluster_in(op, self.cluster, self.name)
        add_mesh(op, axes_of(self.axes, self.name), cluster, self.name)
