"""
Collectives of the program of one rank: shapes are local, and each op lists its group.

Each op is the counterpart of the op of the same kind in a distributed program. The
attributes of an op hold the facts that layouts give in a distributed program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops import kinds
from distir.dialects.collective_ops.base import I64
from distir.dialects.collective_ops.local_form import (
    Exchanging,
    Gathering,
    InLocalForm,
    Reducing,
    Splitting,
)


class InRankForm(InLocalForm):
    """
    Base of the collectives of one rank's program. `group` has the global ranks that
    take part, ordered by their position along the axes.
    """

    group = prop_def(DenseArrayBase.constr(i64))

    @classmethod
    def of(
        cls,
        source: SSAValue,
        axes: Sequence[str],
        result_type: Attribute,
        group: Sequence[int],
        *,
        reduction: str | None = None,
        **numbers: int | None,
    ) -> InRankForm:
        """Returns a new op of this class; see `InLocalForm` for its properties."""
        return cls(
            [source],
            axes,
            result_type,
            group=DenseArrayBase.from_list(i64, list(group)),
            reduction=reduction,
            **numbers,
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks that take part."""
        return tuple(int(r) for r in self.group.get_values())

    @property
    def group_size(self) -> int | None:
        return len(self.ranks)

    @property
    def communicators(self) -> Attribute | str | None:
        return self.group

    def verify_(self) -> None:
        if not self.ranks or len(set(self.ranks)) != len(self.ranks):
            raise VerifyException(
                f"{self.name}: `group` must list at least one rank, each once"
            )
        super().verify_()


class RootedInRankForm(InRankForm):
    """
    Base of the collectives with a root in one rank's program.

    `root` is the root's global rank; by default, the root is the first rank of the
    group. Ranks other than the root ignore the operand of a broadcast or scatter, and
    must not use the result of a reduce or gather.
    """

    root = opt_prop_def(I64)

    @property
    def root_rank(self) -> int:
        """The root's global rank."""
        root = self.number("root")
        return self.ranks[0] if root is None else root


@irdl_op_definition
class RankAllReduceOp(InRankForm, Reducing, kinds.AllReduce):
    """Reduces the tensors of the group's ranks. Every rank gets the whole result."""

    name = "collective.rank.all_reduce"


@irdl_op_definition
class RankAllGatherOp(InRankForm, Gathering, kinds.AllGather):
    """
    Collects the parts of the group's ranks along `dim`. Every rank gets the whole
    tensor.
    """

    name = "collective.rank.all_gather"


@irdl_op_definition
class RankReduceScatterOp(InRankForm, Splitting, Reducing, kinds.ReduceScatter):
    """Reduces the tensors of the group's ranks. Each rank keeps its part along `dim`."""

    name = "collective.rank.reduce_scatter"


@irdl_op_definition
class RankAllToAllOp(InRankForm, Exchanging, kinds.AllToAll):
    """
    Exchanges parts with the group's ranks so that the tensor is gathered along `dim`
    and split along `split_dim`.
    """

    name = "collective.rank.all_to_all"


@irdl_op_definition
class RankRaggedAllToAllOp(InRankForm, Exchanging, kinds.RaggedAllToAll):
    """
    An all-to-all of rows of experts that leaves out empty rows, in the program of one
    rank. `collective.ragged_all_to_all` describes the operands.
    """

    name = "collective.rank.ragged_all_to_all"
    assembly_format = kinds.OF_ROWS


@irdl_op_definition
class RankSliceOp(InRankForm, Splitting, kinds.Slice):
    """
    Keeps this rank's part along `dim` of a tensor that all ranks of the group hold
    whole. Nothing is communicated.
    """

    name = "collective.rank.slice"


@irdl_op_definition
class RankPermuteOp(InRankForm, kinds.Permute):
    """
    Passes the tensor to the rank `shift` positions further in the group (1 if `shift` is
    absent), in a ring.
    """

    name = "collective.rank.permute"


@irdl_op_definition
class RankBroadcastOp(RootedInRankForm, kinds.Broadcast):
    """Copies the root's tensor to every rank of the group."""

    name = "collective.rank.broadcast"


@irdl_op_definition
class RankScatterOp(RootedInRankForm, Splitting, kinds.Scatter):
    """Sends each rank of the group its part along `dim` of the root's tensor."""

    name = "collective.rank.scatter"


@irdl_op_definition
class RankReduceOp(RootedInRankForm, Reducing, kinds.Reduce):
    """Reduces the tensors of the group's ranks. Only the root gets the result."""

    name = "collective.rank.reduce"


@irdl_op_definition
class RankGatherOp(RootedInRankForm, Gathering, kinds.Gather):
    """Collects the parts of the group's ranks along `dim` on the root."""

    name = "collective.rank.gather"


RANK_OPS: Mapping[str, type[InRankForm]] = {
    op.name.rpartition(".")[2]: op
    for op in (
        RankAllReduceOp,
        RankAllGatherOp,
        RankReduceScatterOp,
        RankAllToAllOp,
        RankRaggedAllToAllOp,
        RankSliceOp,
        RankPermuteOp,
        RankBroadcastOp,
        RankScatterOp,
        RankReduceOp,
        RankGatherOp,
    )
}
"""The ops of one rank's program, by their kind: `all_reduce`, `all_gather`, ..."""
