"""`bucket-collectives`: lets collectives of neighbouring tensors travel in one message."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.buckets import bucket_collectives_of


@dataclass(frozen=True)
class BucketCollectivesPass(DistIRPass):
    """
    Lets all-reduces, reduce-scatters and all-gathers of one kind travel in one message, as
    far as nothing stands between them: it gives those of one message a number, `dist.bucket`.
    Run it on a distributed program, after `lower-reshard`; `overlap-communication` forms
    the buckets anew.

    A message gets so many bytes that its latency is at most a twentieth of its time on the
    module's cluster, or at most `megabytes` (1e6 bytes) if that is given. What is computed
    does not change; ops move within their function only. Results of asynchronous
    collectives, and gathered values, do not move across calls of functions, so that nothing
    starts later or is held longer than the ops of one layer take.
    """

    name = "bucket-collectives"

    megabytes: float | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        bucket_collectives_of(op, self.megabytes)
