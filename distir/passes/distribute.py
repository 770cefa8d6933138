"""
`distribute`: turns a sequential program into a distributed one, with data (D), tensor (T)
and pipeline (P) parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.program import replace_program
from distir.program.entries import one_entry
from distir.program.options import EntryOptions


@dataclass(frozen=True)
class DistributePass(DistributionOptions, DistIRPass):
    """
    Distributes a sequential program over the first `r` x `d` x `e` x `c` x `t` x `p`
    devices of a cluster: DistIR's D/T/P transform, with context and expert parallelism
    in addition.

    The axes "r" and "d" are for data parallelism, "e" for expert parallelism, "c" for
    context parallelism (split sequences) and "t" for tensor parallelism. A pipeline of
    `p` ranks works on `k` micro-batches. The pass does the work of these passes, in
    this order: `request-sharding`, `activation-checkpoint`, `data-parallel`,
    `expert-parallel`, `context-parallel`, `sequence-parallel`, `tensor-parallel`,
    `zero`, `propagate-sharding`, `partition`, `pipeline`, `lower-reshard`,
    `ring-attention`, `bucket-collectives`, `offload-states`, `overlap-communication`
    and `verify-distribution`.

    - `entry`: the function to distribute, if a module has several public functions or
      entries, as for `choose-entry`.
    - `cluster`: the symbol of the module's `device.cluster`; unnecessary if the module
      has one cluster or none. If the module has none: the name of a built-in cluster,
      or a cluster file.
    - `shard`: explicit splits of arguments, each `NAME:DIM=AXIS[:RUN]`; `whole`: names
      (with `*`) of arguments that must not be split. Arguments of the program can hold
      further requests (`dist.fixed`).
    - `pad`: `heads` pads attention with heads of zeros if the size of axis "t" does not
      divide the number of heads. Without padding, every device of the axis computes
      such attention whole.
    - `zero`: the ZeRO stage of a training step, over axes "d" and "e" (for experts over
      "d"); 0 for none. Each of the `r` groups of devices holds all tensors that ZeRO
      splits (hybrid sharding): gradients are reduced and scattered in a group, and the
      parts are added up over the groups.
    - `no_sync`: with ZeRO 2 and 3, add up the whole gradients of all micro-batches,
      then reduce and scatter the sums once, as within PyTorch's `no_sync`: less
      communication, more memory. By default, the gradients of each micro-batch are
      reduced and scattered.
    - `checkpoint`: the policy of `activation-checkpoint`, for training steps.
    - `offload_states`: keep the optimizer's states in the host's memory; see
      `offload-states`.
    - `token_dispatch`: the method by which tokens reach experts on other devices of
      axis "e": `gather`, `all-to-all`, or `auto` for the method that sends less; see
      `expert-parallel`.
    - `expert_axes`: the axes over which experts are distributed together, one letter
      each: `e`, `ec`, `et` or `ect`. Over "e" alone, axis "t" splits the matrices of
      each expert. With "t" (and "c"), each device has whole experts, and tokens come
      from the parts of sequences on the devices: attention and experts are split in
      different ways on the same devices. Mixtures must not drop tokens.
    - `context`: the method by which keys and values reach queries on other devices of
      axis "c": `gather`, all at once, or `ring`, block by block; see `ring-attention`.
    - `context_order`: the order of tokens over the devices of axis "c"; see
      `context-parallel`.
    - `sequence_parallel`: split sequences over axis "t" between the blocks; see
      `sequence-parallel`. With `keep_gathered`, layers keep the gathered values for
      their backward pass (`residuals=whole` there).
    - `sharded_outputs`: for a step that takes gradients of its results as inputs (the
      loss `outside`): results that devices of axis "t" compute in parts, such as logits
      split over words, stay split, and so do their gradients. By default such results
      are gathered.
    - `overlap`: run communication while devices compute, if this is faster on the
      cluster; see `overlap-communication`. `profile`: the speeds that devices reach in
      practice. `overlapped`: overlap only communication of these kinds (`dp`, `tp`,
      `pp`, `params`).
    - `buckets`: send neighbouring tensors in one message (default); see
      `bucket-collectives`.
    - `stage_meshes`: for each of the `p` ranks the sizes of the axes of its mesh, such
      as `d=2,t=2`, instead of `r`, `d`, `e`, `c` and `t`. Layouts are chosen on a mesh
      whose sizes are multiples of the sizes of all ranks. `search` finds sizes that
      divide `r`, `d`, ...; see `pipeline`.
    - `schedule`, `chunks`, `stages`, `schedule_file`, `blocking_sends`: options of the
      pipeline; see `pipeline`. With p = 1, `k` micro-batches accumulate gradients.
    """

    name = "distribute"

    entry: str | None = same_option(EntryOptions, "entry")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.entry is not None:
            replace_program(op, one_entry(op, self.entry))
        distribute(op, self)

    @staticmethod
    def of(options: DistributionOptions) -> DistributePass:
        """Returns the pass with the given `options`."""
        return DistributePass(**vars(options))
