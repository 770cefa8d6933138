"""`expert-parallel`: deal the experts of a mixture out over a mesh axis."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.planning.distribution.batches import split_batch
from distir.planning.distribution.experts import split_experts
from distir.planning.distribution.options import DistributionOptions


@dataclass(frozen=True)
class ExpertParallelPass(DistIRPass):
    """
    Requests that the experts of a sequential program are dealt out over `axis`, which also
    splits the batch, as `data-parallel` does. Experts are the matrices, one for each of them
    in one parameter, of a product that can be computed for some experts alone: a grouped
    product (`train.grouped_product`), or a batch of products with the experts in a dimension of
    all that goes in and out. Everything else that has parameters has them whole.

    What such products take is requested to be split like the experts, so that tokens are
    sent to experts. Rows of grouped products are dealt out to as many shards as the axis has
    devices; no token is dropped that was not before.

    `token_dispatch` is the way of tokens to grouped products: with `gather` all tokens go to all
    devices, and results back in the way that the planner finds shorter, as a rule by sums that
    are reduced and scattered; with `all-to-all` each device sends its own tokens to those
    that have their experts. Where no token is dropped, only rows that are taken travel then,
    as many as there are when the program runs (`collective.ragged_all_to_all`); values
    have the size that suffices in any case. `auto` is all-to-all if no token is dropped and
    tokens choose fewer experts than the axis has devices, which sends fewer bytes; else what
    the planner finds shorter.
    """

    name = "expert-parallel"

    axis: str = "e"
    token_dispatch: str = same_option(DistributionOptions, "token_dispatch")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_batch(op, self.axis)
        split_experts(op, self.axis, self.token_dispatch)
