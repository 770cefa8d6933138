"""
The kinds of collectives. A kind holds the facts that an op of the distributed form and
its counterpart of the per-rank form have in common.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import operand_def, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops.base import I64, Buffers, CollectiveOp, Traffic
from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of

OF_ROWS = (
    "$source `of` $rows `to` $arriving `over` custom<AxisNames>($axes) attr-dict "
    "`:` type($source) `,` type($rows) `,` type($arriving) `->` type($result)"
)
"""The assembly format of collectives of kind `RaggedAllToAll`."""


class AllReduce(CollectiveOp):
    """Reduces partial values over the axes. Every device gets the whole result."""

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    CAN_JOIN: ClassVar[bool] = True
    REDUCES: ClassVar[bool] = True
    IN_PLACE: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("exchange", "all_reduce", rounds=2)
    BUFFERS: ClassVar[Buffers] = Buffers(results="others")


class AllGather(CollectiveOp):
    """
    Collects the shards of a tensor along one dimension. Every device gets the whole
    tensor.
    """

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    CAN_JOIN: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic(
        "exchange", "all_gather", of_result=True
    )
    BUFFERS: ClassVar[Buffers] = Buffers(results="all", if_copied=True, last=True)


class ReduceScatter(CollectiveOp):
    """
    Reduces partial values. Each device keeps only its shard of the result along one
    dimension.
    """

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    CAN_JOIN: ClassVar[bool] = True
    REDUCES: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("exchange", "reduce_scatter")
    BUFFERS: ClassVar[Buffers] = Buffers(
        operands=True, results="others", if_copied=True
    )


class ExchangeKind(CollectiveOp):
    """
    Base of collectives that move the split of a tensor to a different dimension. The
    dimension that was split before is gathered.
    """

    TRAFFIC: ClassVar[Traffic | None] = Traffic("exchange", "all_to_all")


class AllToAll(ExchangeKind):
    """
    Exchanges parts of shards so that the devices split a tensor along a different
    dimension. The dimension that was split before is gathered.
    """

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    BUFFERS: ClassVar[Buffers] = Buffers(operands=True)


class RaggedAllToAll(ExchangeKind):
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

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    TORCH_MODULE: ClassVar[str] = "ragged"
    BUFFERS: ClassVar[Buffers] = Buffers(operands=True, results="all")

    source = operand_def(TensorType)
    rows = operand_def(TensorType)
    arriving = operand_def(TensorType)
    taken = prop_def(I64)

    @property
    def share(self) -> float:
        """
        The fraction of the rows that are not empty, if all devices get equally many
        tokens. Otherwise all devices wait for the device with the most rows.
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


class Slice(CollectiveOp):
    """
    Each device keeps its shard of a value that it holds whole. Nothing is communicated.
    """

    TORCH_FUNCTION: ClassVar[str] = "keep_shard"


class Permute(CollectiveOp):
    """
    Ring shift: each device passes its shard to the device `shift` positions further
    along the axis (1 if `shift` is absent). The layout stays the same; the elements of
    the global value move by whole shards.
    """

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = True
    KEEPS_VALUE: ClassVar[bool] = False
    TRAFFIC: ClassVar[Traffic | None] = Traffic("shift")

    shift = opt_prop_def(I64)


class Rooted(CollectiveOp):
    """
    Base of the collectives with a root: one device that has the whole operand or gets
    the whole result. The type of the root's tensor names a mesh without axes (one
    device); the other type names a mesh that contains this device.
    """

    FROM_ROOT: ClassVar[bool] = False
    """Whether the root holds the operand; else it gets the result."""


class Broadcast(Rooted):
    """Copies a value from one device to every device of a mesh."""

    FROM_ROOT: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("chain")


class Scatter(Rooted):
    """Sends each device of a mesh its shard of a value that one device holds."""

    FROM_ROOT: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("parts")


class Reduce(Rooted):
    """Reduces the partial values of a mesh's devices onto one device."""

    REDUCES: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("chain")


class Gather(Rooted):
    """
    Collects on one device the shards of a tensor that a mesh splits along one
    dimension.
    """

    TRAFFIC: ClassVar[Traffic | None] = Traffic("parts")
