"""`bucket-collectives`: sends neighbouring tensors in one message."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.buckets import bucket_collectives_of


@dataclass(frozen=True)
class BucketCollectivesPass(DistIRPass):
    """
    Combines all-reduces, reduce-scatters or all-gathers of the same kind into one
    message, if no op between them prevents it. The ops of a message get the same
    number, `dist.bucket`. Run the pass on a distributed program, after `lower-reshard`.
    `overlap-communication` forms the buckets anew.

    By default, a message is so large that latency is at most a twentieth of its time on
    the module's cluster. The option `megabytes` (1e6 bytes) limits its size instead.
    The program computes the same values; ops move within their function only. Results
    of asynchronous collectives, and gathered values, do not move across calls of
    functions. A transfer is thus delayed, or its result held longer, by at most the ops
    of one layer.
    """

    name = "bucket-collectives"

    megabytes: float | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        bucket_collectives_of(op, self.megabytes)
