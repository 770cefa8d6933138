"""
Collectives over mesh axes in which every device plays the same role, such as an
all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops import kinds
from distir.dialects.collective_ops.distributed import InDistributedForm
from distir.dialects.dist import Layout


@irdl_op_definition
class AllReduceOp(InDistributedForm, kinds.AllReduce):
    """Reduces partial values over the axes. Every device gets the whole result."""

    name = "collective.all_reduce"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self.require_partial(before)
        return [before.without_partial(self.axis_names)]


@irdl_op_definition
class AllGatherOp(InDistributedForm, kinds.AllGather):
    """
    Collects the shards of a tensor along one dimension. Every device gets the whole
    tensor.
    """

    name = "collective.all_gather"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        n = len(self.axis_names)
        return [
            before.with_dim(i, before.dim(i)[:-n], rank)
            for i in self.ending_dims(before, rank)
        ]


@irdl_op_definition
class ReduceScatterOp(InDistributedForm, kinds.ReduceScatter):
    """
    Reduces partial values. Each device keeps only its shard of the result along one
    dimension.
    """

    name = "collective.reduce_scatter"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self.require_partial(before)
        return self.splits(before.without_partial(self.axis_names), rank)


class _ExchangeOp(InDistributedForm, kinds.ExchangeKind):
    """
    Base of the ops that move the split of a tensor to a different dimension. The class
    defines the result layouts that such an op can produce.
    """

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        n = len(self.axis_names)
        found: list[Layout] = []
        for i in self.ending_dims(before, rank):
            gathered = before.with_dim(i, before.dim(i)[:-n], rank)
            found += [
                layout for j, layout in enumerate(self.splits(gathered, rank)) if j != i
            ]
        return found


@irdl_op_definition
class AllToAllOp(_ExchangeOp, kinds.AllToAll):
    """
    Exchanges parts of shards so that the devices split a tensor along a different
    dimension. The dimension that was split before is gathered.
    """

    name = "collective.all_to_all"


@irdl_op_definition
class RaggedAllToAllOp(_ExchangeOp, kinds.RaggedAllToAll):
    """
    An all-to-all that leaves out empty rows. Its tensors hold the rows of experts,
    [shards, groups, places, width]. Empty rows of the result are zero. The number of
    rows that travel is known only when the program runs; `source` and `result` have
    sizes that always suffice.

    - `rows`, `arriving`: for each row of the operand and of the result, the number of
      its expert within its shard, or -1 if the row is empty (see
      `train.expert_places`). The two tensors are split like the operand and the result;
    - `taken`: the number of rows of a group, over all shards, that are not empty.
      Estimates of the amount of data assume that all devices get equally many of these
      rows. Results do not depend on `taken`.
    """

    name = "collective.ragged_all_to_all"
    assembly_format = kinds.OF_ROWS

    @staticmethod
    def of(
        exchange: AllToAllOp, rows: Sequence[SSAValue], taken: IntegerAttr
    ) -> RaggedAllToAllOp:
        """
        Returns the op that replaces the all-to-all `exchange` and leaves out empty
        rows.
        """
        op = RaggedAllToAllOp(
            exchange.source, exchange.axis_names, exchange.result.type
        )
        op.operands = [exchange.source, *rows]
        op.properties |= {**exchange.properties, "taken": taken}
        op.attributes |= exchange.attributes
        return op


@irdl_op_definition
class SliceOp(InDistributedForm, kinds.Slice):
    """
    Each device keeps its shard of a value that it holds whole. Nothing is communicated.
    """

    name = "collective.slice"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self.require_free(before)
        return self.splits(before, rank)


@irdl_op_definition
class PermuteOp(InDistributedForm, kinds.Permute):
    """
    Ring shift: each device passes its shard to the device `shift` positions further
    along the axis (1 if `shift` is absent). The layout stays the same; the elements of
    the global value move by whole shards.
    """

    name = "collective.permute"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        if len(self.axis_names) != 1 or self.axis_names[0] not in before.split_axes:
            raise VerifyException(
                f"{self.name}: expected one axis that splits the operand, got {before}"
            )
        return [before]
