"""
Ops of the program of one rank besides collectives: send, receive, wait, coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, TensorType, i64
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from distir.dialects.axis_names import AxisNames
from distir.dialects.collective_ops.base import (
    I64,
    CollectiveOp,
    MayBeInFlight,
    OfOneRank,
    Waits,
    is_repeat,
    require_waits,
)
from distir.dialects.dist import layout_of
from distir.dialects.dist_attributes import ASYNCHRONOUS


@irdl_op_definition
class CoordinateOp(IRDLOperation):
    """
    This rank's position along the axes (the first axis is major), as a scalar, in the
    program of one rank. `index` is the position.
    """

    name = "collective.coordinate"

    axes = prop_def(ArrayAttr[StringAttr])
    index = prop_def(I64)
    result = result_def(TensorType)

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure(), OfOneRank())
    custom_directives = (AxisNames,)
    assembly_format = "`over` custom<AxisNames>($axes) attr-dict `:` type($result)"

    def __init__(self, axes: Sequence[str], index: int):
        super().__init__(
            properties={
                "axes": ArrayAttr([StringAttr(a) for a in axes]),
                "index": IntegerAttr(index, i64),
            },
            result_types=[TensorType(i64, [])],
        )

    def verify_(self) -> None:
        if self.result.type != TensorType(i64, []):
            raise VerifyException(
                f"{self.name} belongs to the per-rank form and gives a tensor<i64>, got "
                f"{self.result.type}"
            )
        if not self.axes.data or self.index.value.data < 0:
            raise VerifyException(
                f"{self.name} needs an axis and an index that is not negative"
            )


class _Transfer(IRDLOperation):
    """
    Base of ops that transfer a tensor between two ranks, in the program of one rank.
    """

    traits = traits_def(OfOneRank())

    @property
    def is_asynchronous(self) -> bool:
        """Whether this rank goes on while the tensor is in flight."""
        return ASYNCHRONOUS in self.attributes

    def verify_(self) -> None:
        for value in (*self.operands, *self.results):
            if layout_of(value) is not None:
                raise VerifyException(
                    f"{self.name} belongs to the per-rank form; use dist.send"
                )


@irdl_op_definition
class SendToRankOp(_Transfer):
    """
    Sends a local tensor to the global rank `peer` and waits until the tensor has
    arrived (per-rank form). With the unit attribute `dist.asynchronous`, this rank does
    not wait.
    """

    name = "collective.send"

    source = operand_def(TensorType)
    peer = prop_def(I64)
    assembly_format = "$source `to` $peer attr-dict `:` type($source)"

    def __init__(self, source: SSAValue, peer: int):
        super().__init__(operands=[source], properties={"peer": IntegerAttr(peer, i64)})


@irdl_op_definition
class RecvFromRankOp(_Transfer):
    """
    Receives a local tensor from the global rank `peer` (per-rank form). With the unit
    attribute `dist.asynchronous`, this rank goes on before the tensor has arrived; then
    only `collective.wait` may use the result.
    """

    name = "collective.recv"

    result = result_def(TensorType)
    peer = prop_def(I64)
    assembly_format = "`from` $peer attr-dict `:` type($result)"

    def __init__(self, result_type: Attribute, peer: int):
        super().__init__(
            result_types=[result_type], properties={"peer": IntegerAttr(peer, i64)}
        )

    def verify_(self) -> None:
        super().verify_()
        if self.is_asynchronous:
            require_waits(self.result)


@irdl_op_definition
class WaitOp(_Transfer):
    """
    Waits until the tensor of an asynchronous receive or collective has arrived
    (per-rank form). The tensor may also be the result of a call that returned while the
    tensor was in flight.
    """

    name = "collective.wait"

    T: ClassVar = VarConstraint("T", base(TensorType))

    source = operand_def(T)
    result = result_def(T)
    traits = traits_def(OfOneRank(), Waits())
    assembly_format = "$source attr-dict `:` type($result)"

    def __init__(self, source: SSAValue):
        super().__init__(operands=[source], result_types=[source.type])

    def verify_(self) -> None:
        super().verify_()
        started = self.source.owner
        if isinstance(started, Block):
            is_arriving = is_repeat(started.parent_op())
        elif isinstance(started, RecvFromRankOp | CollectiveOp):
            is_arriving = started.is_asynchronous
        else:
            is_arriving = isinstance(started, CallOp) or started.has_trait(
                MayBeInFlight
            )
        if not is_arriving:
            raise VerifyException(
                f"{self.name} needs the result of a collective.recv or of another "
                f"collective with the attribute {ASYNCHRONOUS}, or of a func.call"
            )
        if len(list(self.source.uses)) > 1:
            raise VerifyException(f"{self.name}: the tensor is waited for twice")
