"""`distribute`: the D/T/P transform, from a sequential program to a distributed one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.dialects.device import MOST_DEVICES, ClusterOp, MeshOp
from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard, layout_of
from distir.errors import DistIRError
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.data_parallel import DataParallelPass
from distir.passes.lower_reshard import LowerReshardPass
from distir.passes.options import DistIRPass
from distir.passes.overlap_communication import OverlapCommunicationPass
from distir.passes.partition import PartitionPass
from distir.passes.pipeline import PipelinePass
from distir.passes.propagate_sharding import PropagateShardingPass
from distir.passes.search_stages import SearchStagesPass
from distir.passes.sequence_parallel import SequenceParallelPass
from distir.passes.tensor_parallel import TensorParallelPass
from distir.passes.verify_distribution import VerifyDistributionPass
from distir.passes.zero import ZeroPass
from distir.pipelining import Schedule
from distir.planning.annotations import request_split, requested_layout
from distir.program import (
    argument_attributes,
    argument_names,
    entry_function,
    functions,
    set_argument_attributes,
    updated_arguments,
)
from distir.sharding.layout import canonical, check_layout
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.rule import rank_of, shape_of
from distir.transforms.checkpointing import POLICIES

MESH = "mesh"
SEARCH = "search"
"""In place of the stages of a pipeline: `search-stages` finds them."""

_REQUEST = re.compile(r"(?P<name>.+):(?P<dim>\d+)=(?P<axis>\w+)(:(?P<run>\d+))?")


def cluster_in(
    module: ModuleOp, name: str, what: str = "distribute"
) -> ClusterOp | None:
    """The cluster of that name, or the only one if no name is given; None for none."""
    clusters = [op for op in module.body.block.ops if isinstance(op, ClusterOp)]
    if name:
        found = [c for c in clusters if c.sym_name.data == name]
        if not found:
            raise DistIRError(
                f"{what}: there is no device.cluster @{name} in the module"
            )
        return found[0]
    if len(clusters) > 1:
        raise DistIRError(
            f"{what}: the module has {len(clusters)} clusters; name one with `cluster=`"
        )
    return clusters[0] if clusters else None


def _check_size(
    degrees: Sequence[tuple[str, int]], cluster: ClusterOp | None, what: str
) -> None:
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
            f"larger cluster"
        )


def _check_positions(axes: Sequence[tuple[str, int]], what: str) -> None:
    """A mesh lists its devices; micro-batches count like devices."""
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
    """Declares a mesh with these axes on the first devices of a cluster."""
    _check_size([a for a in axes if a[0] != TIME_AXIS], cluster, what)
    _check_positions(axes, what)
    # An axis of size 1 splits nothing; leaving it out keeps layouts readable. The axis
    # over time stays: `pipeline` reads off it what runs once per micro-batch.
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


def request_shards(module: ModuleOp, mesh: Mesh, requests: Sequence[str]) -> None:
    """
    Annotates arguments with the splits that a user asks for: `NAME:DIM=AXIS[:RUN]`,
    where NAME is an argument's source name and may hold `*`.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    names = argument_names(function)
    for i, dim, shard in requested_splits(function, requests):
        type_ = function.function_type.inputs.data[i]
        layout = requested_layout(attributes[i]) or Layout(mesh.name)
        layout = request_split(layout, dim, shard, rank_of(type_))
        layout = canonical(shape_of(type_), layout, mesh)
        check_layout(shape_of(type_), layout, mesh, f"argument {names[i]!r}")
        attributes[i][LAYOUT] = LayoutAttr(layout)
    set_argument_attributes(function, attributes)


def requested_splits(
    function: FuncOp, requests: Sequence[str]
) -> Iterator[tuple[int, int, Shard]]:
    """
    The arguments that `NAME:DIM=AXIS[:RUN]` mean, each with its dimension and how that is
    split. Raises DistIRError.
    """
    names = argument_names(function)
    for text in requests:
        match = _REQUEST.fullmatch(text)
        if match is None:
            raise DistIRError(
                f"distribute: cannot read the split {text!r}; write "
                f"NAME:DIM=AXIS or NAME:DIM=AXIS:RUN, for example wte.weight:0=t"
            )
        chosen = [i for i, n in enumerate(names) if fnmatchcase(n, match["name"])]
        if not chosen:
            raise DistIRError(
                f"distribute: no argument is called {match['name']!r}; the program has "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            )
        shard = Shard(match["axis"], int(match["run"]) if match["run"] else None)
        for i in chosen:
            type_ = function.function_type.inputs.data[i]
            dim = int(match["dim"])
            if dim >= rank_of(type_):
                raise DistIRError(
                    f"distribute: {names[i]!r} has no dimension {dim}: its type is "
                    f"{type_}"
                )
            yield i, dim, shard


def check_sequential(module: ModuleOp, what: str = "distribute") -> None:
    """Refuses programs that are distributed already or have unknown sizes."""
    for function in functions(module).values():
        for type_ in function.function_type.inputs.data:
            if layout_of(type_) is not None:
                raise DistIRError(
                    f"{what}: the program is distributed already; start from the "
                    f"sequential one"
                )
            if any(size < 0 for size in shape_of(type_)):
                raise DistIRError(
                    f"{what}: @{function.sym_name.data} has an argument of unknown "
                    f"size ({type_}); give dimensions at import and run fold-shapes"
                )


@dataclass(frozen=True)
class DistributePass(DistIRPass):
    """
    Distributes a sequential program over `d` x `t` x `p` devices of a cluster: data
    parallelism over axis "d", tensor parallelism over axis "t", a pipeline of `p` ranks
    that work on `k` micro-batches (DistIR's D/T/P transform). It is the composition of
    `activation-checkpoint`, `data-parallel`, `zero`, `sequence-parallel`,
    `tensor-parallel`, `propagate-sharding`, `partition`, `pipeline`, `lower-reshard`,
    `overlap-communication` and `verify-distribution` on the first d x t x p devices of the
    cluster.

    - `cluster`: symbol of the module's `device.cluster`; may be left out if there is
      only one, or none.
    - `shard`: explicit splits of arguments, each `NAME:DIM=AXIS[:RUN]`.
    - `zero`: the ZeRO stage, over axis "d"; 0 for none. For training steps.
    - `checkpoint`: the policy of `activation-checkpoint`. For training steps.
    - `sequence_parallel`: split sequences over axis "t" between the blocks.
    - `overlap`: run communication beside computation, as far as it pays on the cluster;
      see `overlap-communication`.
    - `schedule`, `chunks`, `stages`, `schedule_file`, `blocking_sends`: of the pipeline;
      see `pipeline`. With p = 1, `k` micro-batches accumulate gradients. With
      `stages=search`, `search-stages` chooses them.
    """

    name = "distribute"

    d: int = 1
    t: int = 1
    p: int = 1
    k: int = 1
    cluster: str = ""
    shard: tuple[str, ...] = ()
    zero: int = 0
    checkpoint: str = "none"
    sequence_parallel: bool = False
    schedule: str = ""
    chunks: int | None = None
    stages: tuple[str, ...] = ()
    schedule_file: str = ""
    blocking_sends: bool = False
    overlap: bool = False

    @property
    def is_pipelined(self) -> bool:
        """Whether there are several stages or micro-batches."""
        return self.p > 1 or self.k > 1

    def check_pipeline(self, what: str = "distribute") -> None:
        """Refuses options of a pipeline that is none. Raises DistIRError."""
        asked = [
            option
            for option, given in (
                ("schedule", self.schedule or self.schedule_file),
                ("chunks", self.chunks is not None),
                ("stages", self.stages),
            )
            if given
        ]
        if asked and not self.is_pipelined:
            raise DistIRError(
                f"{what}: {' and '.join(asked)} is of a pipeline, but p and k are 1; "
                f"choose a larger p"
            )
        if self.k < 1:
            raise DistIRError(f"{what}: k={self.k} micro-batches; choose 1 or more")

    def _check_options(self, module: ModuleOp) -> None:
        if self.zero not in range(4):
            raise DistIRError(
                f"distribute: there is no ZeRO stage {self.zero}; choose 0, 1, 2 or 3"
            )
        if self.checkpoint not in POLICIES:
            raise DistIRError(
                f"distribute: there is no checkpoint policy {self.checkpoint!r}; choose "
                f"one of {', '.join(POLICIES)}"
            )
        if self.sequence_parallel and self.t == 1:
            raise DistIRError(
                "distribute: sequence parallelism splits sequences over the "
                "tensor-parallel devices, but t is 1; choose a larger -t"
            )
        self.check_pipeline()
        if self.overlap and self.blocking_sends:
            raise DistIRError(
                "distribute: sends that block cannot overlap with computation; leave out "
                "either overlap or blocking_sends"
            )
        if self.zero and self.d == 1:
            raise DistIRError(
                f"distribute: ZeRO stage {self.zero} splits what a training step keeps "
                f"over the data-parallel devices, but d is 1; choose a larger -d"
            )
        asked = [f"ZeRO stage {self.zero}"] if self.zero else []
        if self.checkpoint != "none":
            asked.append(f"{self.checkpoint} activation checkpointing")
        if asked and not updated_arguments(entry_function(module)):
            raise DistIRError(
                f"distribute: {' and '.join(asked)} needs a training step, but the "
                f"program updates no argument (dist.updates); build or import it with "
                f"--training, or run `differentiate` first"
            )

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.annotate(ctx, op)
        PartitionPass(lower=False).apply(ctx, op)
        self.complete(ctx, op)
        VerifyDistributionPass().apply(ctx, op)
        if self.overlap:
            OverlapCommunicationPass().apply(ctx, op)
            VerifyDistributionPass().apply(ctx, op)

    def annotate(self, ctx: Context, op: ModuleOp) -> None:
        """The first part: chooses the layouts and leaves them as annotations."""
        check_sequential(op)
        self._check_options(op)
        if any(isinstance(o, MeshOp) for o in op.body.block.ops):
            raise DistIRError(
                "distribute makes its own mesh; remove the device.mesh of the module"
            )
        cluster = cluster_in(op, self.cluster)
        pipeline = [("p", self.p)] if self.is_pipelined else []
        _check_size([("d", self.d), ("t", self.t), *pipeline], cluster, "distribute")
        time = [(TIME_AXIS, self.k)] if self.is_pipelined else []
        mesh = add_mesh(op, [*time, ("d", self.d), ("t", self.t)], cluster)
        ActivationCheckpointPass(self.checkpoint).apply(ctx, op)
        if self.is_pipelined:
            DataParallelPass(TIME_AXIS).apply(ctx, op)
        if self.d > 1:
            DataParallelPass("d").apply(ctx, op)
        if self.zero:
            ZeroPass(self.zero, "d").apply(ctx, op)
        request_shards(op, mesh, self.shard)
        if self.sequence_parallel:
            SequenceParallelPass("t").apply(ctx, op)
        if self.t > 1:
            TensorParallelPass("t").apply(ctx, op)
        PropagateShardingPass().apply(ctx, op)

    def complete(self, ctx: Context, op: ModuleOp) -> None:
        """The last part, after `partition`: the pipeline and the communication."""
        if self.is_pipelined:
            if self._searches_stages:
                self._stage_search().apply(ctx, op)
            self.pipeline().apply(ctx, op)
        LowerReshardPass().apply(ctx, op)

    def schedule_of(self, trains: bool) -> Schedule:
        """The schedule of the pipeline, of a training step or not. Raises DistIRError."""
        return self.pipeline().schedule_of(self.k, trains)

    def pipeline(self) -> PipelinePass:
        """The pass that makes the pipeline."""
        return PipelinePass(
            p=self.p,
            schedule=self.schedule,
            chunks=self.chunks,
            stages=() if self._searches_stages else self.stages,
            schedule_file=self.schedule_file,
            blocking_sends=self.blocking_sends,
        )

    @property
    def _searches_stages(self) -> bool:
        return self.stages == (SEARCH,)

    def _stage_search(self) -> SearchStagesPass:
        return SearchStagesPass(
            p=self.p,
            schedule=self.schedule,
            chunks=self.chunks,
            schedule_file=self.schedule_file,
            blocking_sends=self.blocking_sends,
        )
