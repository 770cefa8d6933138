"""
`batch-statistics`: computes the statistics of training-mode batch normalisation by ops
of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.gradients.batch_parts import BatchParts
from distir.gradients.batch_statistics import RunningStatistics
from distir.gradients.options import StepOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.program import reachable_functions


@dataclass(frozen=True)
class BatchStatisticsPass(DistIRPass):
    """
    Rewrites batch normalisation in training mode as two steps: the mean and the
    variance of the batch, and a normalisation with given mean and variance. Mean and
    variance are sums over the batch. The batch can therefore be split over devices, and
    every device uses the statistics of the whole batch (PyTorch's SyncBatchNorm).

    With several `devices` or `micro_batches`, each device uses the statistics of its
    own samples in a micro-batch, as PyTorch's DistributedDataParallel and pipelines do
    (`train.ghost_batch_norm`). The batch is cut into equal parts in order; the parts of
    the first micro-batch come first. Devices exchange no statistics. The result depends
    on the numbers of devices and of micro-batches, so the program records both.

    Running statistics that are weights of the program become states, and results of the
    program update them as PyTorch does. Each micro-batch updates these states once, and
    the values of the first device are kept. Running statistics whose new values the
    program itself uses do not become states.
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
