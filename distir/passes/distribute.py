"""`distribute`: the D/T/P transform, from a sequential program to a distributed one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from distir.dialects.device import MeshOp
from distir.errors import DistIRError
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.bucket_collectives import BucketCollectivesPass
from distir.passes.data_parallel import DataParallelPass
from distir.passes.lower_reshard import LowerReshardPass
from distir.passes.options import DistIRPass
from distir.passes.overlap_communication import OverlapCommunicationPass
from distir.passes.partition import PartitionPass
from distir.passes.pipeline import PipelinePass
from distir.passes.propagate_sharding import PropagateShardingPass
from distir.passes.request_sharding import RequestShardingPass
from distir.passes.sequence_parallel import SequenceParallelPass
from distir.passes.tensor_parallel import TensorParallelPass
from distir.passes.verify_distribution import VerifyDistributionPass
from distir.passes.zero import ZeroPass
from distir.pipelining import PipelineOptions
from distir.planning.meshes import add_mesh, check_sequential, check_size, cluster_in
from distir.program import entry_function, updated_arguments
from distir.sharding.mesh import TIME_AXIS


@dataclass(frozen=True)
class DistributePass(PipelineOptions, DistIRPass):
    """
    Distributes a sequential program over `d` x `t` x `p` devices of a cluster: data
    parallelism over axis "d", tensor parallelism over axis "t", a pipeline of `p` ranks
    that work on `k` micro-batches (DistIR's D/T/P transform). It is the composition of
    `activation-checkpoint`, `data-parallel`, `zero`, `sequence-parallel`,
    `tensor-parallel`, `propagate-sharding`, `partition`, `pipeline`, `lower-reshard`,
    `overlap-communication`, `bucket-collectives` and `verify-distribution` on the first
    d x t x p devices of the cluster.

    - `cluster`: symbol of the module's `device.cluster`; may be left out if there is
      only one, or none.
    - `shard`: explicit splits of arguments, each `NAME:DIM=AXIS[:RUN]`.
    - `zero`: the ZeRO stage, over axis "d"; 0 for none. For training steps.
    - `checkpoint`: the policy of `activation-checkpoint`. For training steps.
    - `sequence_parallel`: split sequences over axis "t" between the blocks.
    - `overlap`: run communication beside computation, as far as it pays on the cluster;
      see `overlap-communication`.
    - `buckets`: let tensors travel in one message; see `bucket-collectives`.
    - `schedule`, `chunks`, `stages`, `schedule_file`, `blocking_sends`: of the pipeline;
      see `pipeline`. With p = 1, `k` micro-batches accumulate gradients.
    """

    name = "distribute"

    d: int = 1
    t: int = 1
    cluster: str = ""
    shard: tuple[str, ...] = ()
    zero: int = 0
    checkpoint: str = "none"
    sequence_parallel: bool = False
    overlap: bool = False
    buckets: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.annotate(ctx, op)
        for part in self._partitioning():
            part.apply(ctx, op)

    def annotate(self, ctx: Context, op: ModuleOp) -> None:
        """The first part: chooses the layouts and leaves them as annotations."""
        check_sequential(op, self.name)
        self._check_options(op)
        self._add_mesh(op)
        for part in self._annotating():
            part.apply(ctx, op)

    def _annotating(self) -> Iterator[ModulePass]:
        yield ActivationCheckpointPass(self.checkpoint)
        if self.is_pipelined:
            yield DataParallelPass(TIME_AXIS)
        if self.d > 1:
            yield DataParallelPass("d")
        if self.zero:
            yield ZeroPass(self.zero, "d")
        if self.shard:
            yield RequestShardingPass(self.shard)
        if self.sequence_parallel:
            yield SequenceParallelPass("t")
        if self.t > 1:
            yield TensorParallelPass("t")
        yield PropagateShardingPass()

    def _partitioning(self) -> Iterator[ModulePass]:
        yield PartitionPass(lower=False)
        if self.is_pipelined:
            yield PipelinePass.of(self)
        yield LowerReshardPass()
        yield VerifyDistributionPass()
        if self.overlap:
            yield OverlapCommunicationPass()
        if self.buckets:
            yield BucketCollectivesPass()
        if self.overlap or self.buckets:
            yield VerifyDistributionPass()

    def _add_mesh(self, module: ModuleOp) -> None:
        if any(isinstance(op, MeshOp) for op in module.body.block.ops):
            raise DistIRError(
                "distribute makes its own mesh; remove the device.mesh of the module"
            )
        cluster = cluster_in(module, self.cluster, self.name)
        devices = [("d", self.d), ("t", self.t)]
        if self.is_pipelined:
            check_size([*devices, ("p", self.p)], cluster, self.name)
            devices = [(TIME_AXIS, self.k), *devices]
        add_mesh(module, devices, cluster, self.name)

    def _check_options(self, module: ModuleOp) -> None:
        if self.sequence_parallel and self.t == 1:
            raise DistIRError(
                "distribute: sequence parallelism splits sequences over the "
                "tensor-parallel devices, but t is 1; choose a larger -t"
            )
        self.check_pipeline(self.name)
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
