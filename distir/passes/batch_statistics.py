"""
`batch-statistics`: writes training-mode batch normalisation as statistics and their use.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.gradients.batch_statistics import BatchParts, RunningStatistics
from distir.gradients.options import StepOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.program import reachable_functions


@dataclass(frozen=True)
class BatchStatisticsPass(DistIRPass):
    """
    Writes batch normalisation in training mode as the mean and variance of the batch and
    batch normalisation with them. Both are sums over the batch: it can then be split,
    and every device uses the statistics of the whole batch (PyTorch's SyncBatchNorm).

    With several `devices` or `micro_batches`, statistics are those of a device's samples in
    a micro-batch, as in PyTorch's DistributedDataParallel and pipelines: of equal parts of the
    batch, one after the other, those of the first micro-batch first
    (`train.ghost_batch_norm`). Nothing is exchanged for them, and the result depends on both
    numbers, so that the program says them.

    Running statistics that are weights of the program become states, which results
    update as PyTorch does, unless the program uses the new ones itself: each micro-batch
    moves them, and those of the first device are kept.
    """

    name = "batch-statistics"

    devices: int = same_option(StepOptions, "batch_norm_devices")
    micro_batches: int = same_option(StepOptions, "batch_norm_micro_batches")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        parts = BatchParts(self.devices, self.micro_batches)
        parts.check()
        statistics = RunningStatistics(op, parts)
        for function in reachable_functions(op):
            statistics.write_out(function)
