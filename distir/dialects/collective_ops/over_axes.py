"""
Collectives over mesh axes in which every device plays the same role, such as an
all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    IntegerAttr,
    TensorType,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops.base import (
    I64,
    Buffers,
    CollectiveOp,
    Traffic,
)
from distir.dialects.dist import Layout, layout_of
from distir.dialects.tensors import shape_of


@irdl_op_definition
class AllReduceOp(CollectiveOp):
    """Reduces partial values over the axes. Every device gets the whole result."""

    name = "collective.all_reduce"
    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    CAN_JOIN: ClassVar[bool] = True
    REDUCES: ClassVar[bool] = True
    IN_PLACE: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("exchange", "all_reduce", rounds=2)
    BUFFERS: ClassVar[Buffers] = Buffers(results="others")
    NEEDED: ClassVar[tuple[str, ...]] = ("reduction",)

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self._require_partial(before)
        return [before.without_partial(self.axis_names)]


@irdl_op_definition
class AllGatherOp(CollectiveOp):
    """
    Collects the shards of a tensor along one dimension. Every device gets all of them.
    """

    name = "collective.all_gather"
    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    CAN_JOIN: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic(
        "exchange", "all_gather", of_result=True
    )
    BUFFERS: ClassVar[Buffers] = Buffers(results="all", if_copied=True, last=True)
    NEEDED: ClassVar[tuple[str, ...]] = ("dim",)

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        n = len(self.axis_names)
        return [
            before.with_dim(i, before.dim(i)[:-n], rank)
            for i in self._ending_dims(before, rank)
        ]


@irdl_op_definition
class ReduceScatterOp(CollectiveOp):
    """
    Reduces partial values. Each device keeps only its shard of the result along one
    dimension.
    """

    name = "collective.reduce_scatter"
    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    CAN_JOIN: ClassVar[bool] = True
    REDUCES: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("exchange", "reduce_scatter")
    BUFFERS: ClassVar[Buffers] = Buffers(
        operands=True, results="others", if_copied=True
    )
    NEEDED: ClassVar[tuple[str, ...]] = ("reduction", "dim")

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self._require_partial(before)
        return self._splits(before.without_partial(self.axis_names), rank)


class _Exchange(CollectiveOp):
    """
    Base of collectives that move the split of a tensor to another dimension: one
    dimension is gathered, and the other is split.
    """

    NEEDED: ClassVar[tuple[str, ...]] = ("dim", "split_dim")
    TRAFFIC: ClassVar[Traffic | None] = Traffic("exchange", "all_to_all")

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        n = len(self.axis_names)
        found: list[Layout] = []
        for i in self._ending_dims(before, rank):
            gathered = before.with_dim(i, before.dim(i)[:-n], rank)
            found += [
                layout
                for j, layout in enumerate(self._splits(gathered, rank))
                if j != i
            ]
        return found


@irdl_op_definition
class AllToAllOp(_Exchange):
    """
    Exchanges parts of shards so that the devices split a tensor along another
    dimension: one dimension is gathered, and the other is split.
    """

    name = "collective.all_to_all"
    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    BUFFERS: ClassVar[Buffers] = Buffers(operands=True)


@irdl_op_definition
class RaggedAllToAllOp(_Exchange):
    """
    An all-to-all that leaves out empty rows. Its tensors hold the rows of experts,
    [shards, groups, places, width]. Empty rows of the result are zero. The number of
    rows that travel is known only when the program runs; `source` and `result` have
    sizes that always suffice.

    - `rows`, `arriving`: for each row of the operand and of the result, the number of
      its expert within its shard, or -1 if the row is empty (see
      `train.expert_places`). They are split like the operand and the result;
    - `taken`: the number of rows of a group, over all shards, that are not empty. It
      gives the amount of data if tokens are spread evenly. Results do not depend on it.
    """

    name = "collective.ragged_all_to_all"
    TORCH_MODULE: ClassVar[str] = "ragged"
    BUFFERS: ClassVar[Buffers] = Buffers(operands=True, results="all")

    source = operand_def(TensorType)
    rows = operand_def(TensorType)
    arriving = operand_def(TensorType)
    taken = prop_def(I64)

    assembly_format = (
        "$source `of` $rows `to` $arriving `over` $axes attr-dict "
        "`:` type($source) `,` type($rows) `,` type($arriving) `->` type($result)"
    )

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

    @property
    def share(self) -> float:
        """
        The fraction of the rows that are not empty, if tokens are spread evenly. If
        they are not, all devices wait for the one with the most rows.
        """
        shards, _, places = shape_of(self.source)[:3]
        return min(1.0, self.taken.value.data / (shards * places))

    def verify_(self) -> None:
        for rows, values in ((self.rows, self.source), (self.arriving, self.result)):
            if shape_of(values)[:-1] != shape_of(rows) or len(shape_of(rows)) != 3:
                raise VerifyException(
                    f"{self.name}: expected a number for each row of {values.type}, got "
                    f"{rows.type}"
                )
            layout, own = layout_of(values), layout_of(rows)
            if layout and (own is None or layout.full_dims(4)[:3] != own.full_dims(3)):
                raise VerifyException(
                    f"{self.name}: expected rows that are split as {layout}, got {own}"
                )
        super().verify_()


@irdl_op_definition
class SliceOp(CollectiveOp):
    """
    Each device keeps its shard of a value that it holds whole. Nothing is communicated.
    """

    name = "collective.slice"
    TORCH_FUNCTION: ClassVar[str] = "keep_shard"
    NEEDED: ClassVar[tuple[str, ...]] = ("dim",)

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self._require_free(before)
        return self._splits(before, rank)


@irdl_op_definition
class PermuteOp(CollectiveOp):
    """
    Ring shift: each device passes its shard to the device `shift` positions further
    along the axis. The layout stays the same; the global value is rolled by whole
    shards.
    """

    name = "collective.permute"
    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    KEEPS_VALUE: ClassVar[bool] = False
    TRAFFIC: ClassVar[Traffic | None] = Traffic("shift")

    shift = opt_prop_def(I64)

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        if len(self.axis_names) != 1 or self.axis_names[0] not in before.split_axes:
            raise VerifyException(
                f"{self.name}: expected one axis that splits the operand, got {before}"
            )
        return [before]
