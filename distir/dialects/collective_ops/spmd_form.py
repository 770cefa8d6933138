"""
Collectives of one program for all ranks: each op takes its group as a value that the
program computes from the number of its rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import Attribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops import kinds
from distir.dialects.collective_ops.local_form import (
    Exchanging,
    Gathering,
    InLocalForm,
    Reducing,
    Splitting,
)


class _NumberOfRun(IRDLOperation):
    """
    Base of ops that return a number, such as the number of ranks, as a tensor<i64>. The
    number is known only when the program runs.
    """

    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[TensorType(i64, [])])

    def verify_(self) -> None:
        if self.result.type != TensorType(i64, []):
            raise VerifyException(
                f"{self.name} gives a tensor<i64>, got {self.result.type}"
            )


@irdl_op_definition
class ThisRankOp(_NumberOfRun):
    """The number of the rank that runs the program, from 0."""

    name = "collective.spmd.rank"


@irdl_op_definition
class RankCountOp(_NumberOfRun):
    """The number of ranks that run the program."""

    name = "collective.spmd.ranks"


class InSpmdForm(InLocalForm):
    """
    Base of the collectives of one program for all ranks. `group` is a tensor<?xi64>
    with the numbers of the ranks that take part, ordered by their position along the
    axes.
    """

    source = operand_def(TensorType)
    group = operand_def(TensorType)

    assembly_format = (
        "$source `in` $group `over` custom<AxisNames>($axes) attr-dict "
        "`:` type($source) `,` type($group) `->` type($result)"
    )

    @property
    def group_size(self) -> int | None:
        type_ = self.group.type
        assert isinstance(type_, TensorType)
        (size,) = type_.get_shape()
        return size if size >= 0 else None

    @property
    def communicators(self) -> Attribute | str | None:
        return None

    def verify_(self) -> None:
        type_ = self.group.type
        assert isinstance(type_, TensorType)
        if type_.get_num_dims() != 1 or type_.element_type != i64:
            raise VerifyException(
                f"{self.name}: the group is a list of ranks, tensor<?xi64>, got {type_}"
            )
        super().verify_()


@irdl_op_definition
class SpmdAllReduceOp(InSpmdForm, Reducing, kinds.AllReduce):
    """Reduces the tensors of the group's ranks. Every rank gets the whole result."""

    name = "collective.spmd.all_reduce"


@irdl_op_definition
class SpmdAllGatherOp(InSpmdForm, Gathering, kinds.AllGather):
    """
    Collects the parts of the group's ranks along `dim`. Every rank gets the whole
    tensor.
    """

    name = "collective.spmd.all_gather"


@irdl_op_definition
class SpmdReduceScatterOp(InSpmdForm, Splitting, Reducing, kinds.ReduceScatter):
    """Reduces the tensors of the group's ranks. Each rank keeps its part along `dim`."""

    name = "collective.spmd.reduce_scatter"


@irdl_op_definition
class SpmdAllToAllOp(InSpmdForm, Exchanging, kinds.AllToAll):
    """
    Exchanges parts with the group's ranks so that the tensor is gathered along `dim`
    and split along `split_dim`.
    """

    name = "collective.spmd.all_to_all"


@irdl_op_definition
class SpmdSliceOp(InSpmdForm, Splitting, kinds.Slice):
    """
    Keeps this rank's part along `dim` of a tensor that all ranks of the group hold
    whole. Nothing is communicated.
    """

    name = "collective.spmd.slice"


@irdl_op_definition
class SpmdPermuteOp(InSpmdForm, kinds.Permute):
    """
    Passes the tensor to the rank `shift` positions further in the group (1 if `shift` is
    absent), in a ring.
    """

    name = "collective.spmd.permute"


SPMD_OPS: Mapping[str, type[InSpmdForm]] = {
    op.name.rpartition(".")[2]: op
    for op in (
        SpmdAllReduceOp,
        SpmdAllGatherOp,
        SpmdReduceScatterOp,
        SpmdAllToAllOp,
        SpmdSliceOp,
        SpmdPermuteOp,
    )
}
"""The ops of one program for all ranks, by their kind: `all_reduce`, `slice`, ..."""
