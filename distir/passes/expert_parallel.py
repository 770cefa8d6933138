"""`expert-parallel`: distributes the experts of a mixture over a mesh axis."""

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
    Requests that the experts of a sequential program are distributed over `axis`. The
    axis also splits the batch, as in `data-parallel`.

    A parameter counts as experts if it has one matrix for each expert, and the product
    with these matrices can be computed for a part of the experts alone. Such a product
    is a grouped product (`train.grouped_product`), or a batch of products whose
    operands and results all have a dimension of experts. All other parameters stay
    whole.

    The pass requests that the operands of such products are split like the experts, so
    that tokens are sent to experts. The rows of grouped products are divided into as
    many shards as the axis has devices. The pass drops no token that the program did
    not drop before.

    `token_dispatch` is the method by which tokens reach grouped products. With
    `gather`, all devices get all tokens; the planner chooses the communication that
    returns the results, usually a reduce-scatter of sums. With `all-to-all`, each
    device sends its tokens only to the devices of their experts. If no token is
    dropped, only the rows in use travel then; their number is known when the program
    runs (`collective.ragged_all_to_all`), and tensors have the size for the worst case.
    `auto` is `all-to-all` if no token is dropped and each token chooses fewer experts
    than the axis has devices: this sends fewer bytes. Otherwise the planner chooses.
    """

    name = "expert-parallel"

    axis: str = "e"
    token_dispatch: str = same_option(DistributionOptions, "token_dispatch")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_batch(op, self.axis)
        split_experts(op, [self.axis], self.token_dispatch)
