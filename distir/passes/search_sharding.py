"""`search-sharding`: the layouts of all values that take the least time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from distir.dialects.device import ClusterOp, MeshOp
from distir.dialects.dist import LAYOUT, Layout, LayoutAttr
from distir.errors import DistIRError
from distir.interpreters.cost.hardware import Hardware
from distir.passes.annotations import add_notes, requested_layout
from distir.passes.distribute import (
    add_mesh,
    check_sequential,
    cluster_in,
    request_shards,
)
from distir.passes.partition import PartitionPass
from distir.passes.search.sharding import SOLVERS, Limits, Solver, search_sharding
from distir.passes.verify_distribution import VerifyDistributionPass
from distir.program import (
    argument_attributes,
    argument_names,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.mesh import Mesh

_AXIS = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<size>\d+)")


def solver_named(name: str) -> Solver:
    """The solver of that name. Raises DistIRError."""
    for known in SOLVERS:
        if known == name:
            return known
    raise DistIRError(
        f"search-sharding: there is no solver {name!r}; choose one of "
        f"{', '.join(SOLVERS)}"
    )


def _axes(texts: Sequence[str]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise DistIRError(
                f"search-sharding: cannot read the axis {text!r}; write NAME=SIZE, for "
                f'example axes="d=2","t=4"'
            )
        found.append((match["name"], int(match["size"])))
    return found


def keep_whole(module: ModuleOp, mesh: Mesh, patterns: Sequence[str]) -> None:
    """Requests that arguments with these source names (with `*`) are not split."""
    function = entry_function(module)
    attributes, names = argument_attributes(function), argument_names(function)
    for pattern in patterns:
        chosen = [i for i, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not chosen:
            raise DistIRError(
                f"search-sharding: no argument is called {pattern!r}; the program has "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            )
        for i in chosen:
            if (requested_layout(attributes[i]) or Layout(mesh.name)).split_axes:
                raise DistIRError(
                    f"search-sharding: {names[i]!r} is to be split and to be kept whole"
                )
            attributes[i][LAYOUT] = LayoutAttr(Layout(mesh.name))
    set_argument_attributes(function, attributes)


@dataclass(frozen=True)
class SearchShardingPass(ModulePass):
    """
    Distributes a sequential program over a mesh in the way that takes the least time
    (DESIGN section 8; Rhino section 4). Nothing here knows architectures: what each op can
    do follows from its sharding rule, what that and every change of layout costs from the
    simulator, and the choice is proven to be the best of all combinations, or how far from
    it it is at most. The result is what `partition` makes of the layouts that were chosen;
    `dist.notes` says what was found.

    - `axes`: the mesh, `NAME=SIZE` for each axis, on the first devices of the cluster. A
      module with a `device.mesh` keeps that one.
    - `cluster`: symbol of the module's `device.cluster`; may be left out if there is only
      one.
    - `solver`: `highs` or `cbc` for integer programming, `auto` for whatever suits.
    - `memory`: bytes per device that may be used; those of the smallest device by default.
    - `gap`, `time_limit`: stop when the answer is that close to the best (a fraction), or
      after that many seconds.
    - `shard`: layouts that arguments must have, each `NAME:DIM=AXIS[:RUN]`; `whole`: names
      of arguments that must not be split. `dist.constrain` fixes layouts of other values.
    """

    name = "search-sharding"

    axes: tuple[str, ...] = ()
    cluster: str = ""
    solver: str = "auto"
    memory: float | None = None
    gap: float = 1e-3
    time_limit: float | None = None
    shard: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_sequential(op, self.name)
        solver = solver_named(self.solver)
        cluster = cluster_in(op, self.cluster, self.name)
        if cluster is None:
            raise DistIRError(
                "search-sharding: the module has no device.cluster, which says what "
                "everything costs; add one"
            )
        mesh = self._mesh(op, cluster)
        request_shards(op, mesh, self.shard)
        keep_whole(op, mesh, self.whole)
        limits = Limits(self._memory(cluster, mesh), solver, self.gap, self.time_limit)
        found = search_sharding(op, mesh, cluster, limits)
        PartitionPass().apply(ctx, op)
        VerifyDistributionPass().apply(ctx, op)
        add_notes(op, [f"search-sharding: {found}"])

    def _memory(self, cluster: ClusterOp, mesh: Mesh) -> float:
        if self.memory is not None:
            return self.memory
        kinds = Hardware.of(cluster).distinct_kinds(mesh.devices)
        return min(kind.memory for kind in kinds)

    def _mesh(self, module: ModuleOp, cluster: ClusterOp) -> Mesh:
        meshes = [o for o in module.body.block.ops if isinstance(o, MeshOp)]
        if len(meshes) > 1 or (meshes and self.axes):
            raise DistIRError(
                "search-sharding works on one mesh; give `axes`, or a module with one "
                "device.mesh"
            )
        if meshes:
            return Mesh.of(meshes[0])
        if not self.axes:
            raise DistIRError(
                "search-sharding: the module has no device.mesh; say with `axes` how many "
                'devices there are, for example axes="d=2","t=4"'
            )
        return add_mesh(module, _axes(self.axes), cluster, self.name)
