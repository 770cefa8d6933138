"""`distribute`: the D/T/P transform, from a sequential program to a distributed one."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions


@dataclass(frozen=True)
class DistributePass(DistributionOptions, DistIRPass):
    """
    Distributes a sequential program over `r` x `d` x `e` x `c` x `t` x `p` devices of a cluster: data
    parallelism over axes "r" and "d", expert parallelism over axis "e", context parallelism (sequences
    in parts) over axis "c", tensor parallelism over axis "t", a pipeline of `p` ranks that work
    on `k` micro-batches (DistIR's D/T/P transform, and c and e). It does what `request-sharding`, `activation-checkpoint`,
    `data-parallel`, `expert-parallel`, `context-parallel`, `sequence-parallel`, `tensor-parallel`, `zero`,
    `propagate-sharding`, `partition`, `pipeline`, `lower-reshard`, `ring-attention`,
    `bucket-collectives`, `offload-states`, `overlap-communication` and `verify-distribution` do, in this order, on the first
    r x d x e x c x t x p devices of the cluster.

    - `cluster`: symbol of the module's `device.cluster`, which may be left out if there is
      only one, or none; in a module without one, a built-in cluster or a file.
    - `shard`: explicit splits of arguments, each `NAME:DIM=AXIS[:RUN]`; `whole`: names
      (with `*`) of arguments that must not be split. Further requests are those in the
      program's arguments (`dist.fixed`).
    - `pad`: `heads` pads attention with heads of zeros where axis "t" does not divide its heads;
      without it such attention is whole on every device of the axis.
    - `zero`: the ZeRO stage, over axes "d" and "e" (experts over "d"); 0 for none. For training steps. Each of the `r`
      groups of devices holds all that is split (hybrid sharding): gradients are reduced and
      scattered in a group, and the parts are added up over the groups.
    - `no_sync`: with ZeRO 2 and 3, add up the whole gradients of micro-batches and reduce and
      scatter them once, instead of those of each (as within PyTorch's `no_sync`): less
      communication, and more memory.
    - `checkpoint`: the policy of `activation-checkpoint`. For training steps.
    - `offload_states`: keep the optimizer's states in the host's memory; see `offload-states`.
    - `token_dispatch`: the way of tokens to experts on other devices of axis "e": `gather`,
      `all-to-all`, or the one that sends less (`auto`); see `expert-parallel`.
    - `context`: how keys and values come to the queries of other devices of axis "c":
      `gather`, all at once, or `ring`, block by block; see `ring-attention`.
    - `context_order`: which tokens each device of axis "c" has; see `context-parallel`.
    - `sequence_parallel`: split sequences over axis "t" between the blocks.
    - `overlap`: run communication beside computation, as far as that pays on the cluster,
      with devices that reach what `profile` says; `overlapped`: only communication of these
      kinds (`dp`, `tp`, `pp`, `params`); see `overlap-communication`.
    - `buckets`: let neighbouring tensors travel in one message (default); see
      `bucket-collectives`.
    - `stage_meshes`: for each of the `p` ranks the sizes of the axes of its mesh, such as
      `d=2,t=2`, instead of `r`, `d`, `e`, `c` and `t`; layouts are chosen on a mesh whose
      sizes all of them divide. `search` finds them, of sizes that divide `r`, `d`, ...; see
      `pipeline`.
    - `schedule`, `chunks`, `stages`, `schedule_file`, `blocking_sends`: of the pipeline;
      see `pipeline`. With p = 1, `k` micro-batches accumulate gradients.
    """

    name = "distribute"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        distribute(op, self)

    @staticmethod
    def of(options: DistributionOptions) -> DistributePass:
        """Returns the pass that distributes a program with these options."""
        return DistributePass(**vars(options))
