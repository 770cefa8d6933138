"""
The base of collectives: their distributed and per-rank forms, messages, buffers,
layouts of operands and results, and asynchronous results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    operand_def,
    prop_def,
    result_def,
)
from xdsl.traits import (
    OpTrait,
    SymbolTable,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.axis_names import AxisNames
from distir.dialects.dist_attributes import ASYNCHRONOUS, BUCKET

I64 = IntegerAttr.constr(i64)


REPEAT = "torch.repeat"
"""
The attribute of a function that exists only to make the text of a program shorter. Like
the code around its calls, it may take tensors that are still in flight and wait for
them.
"""


class MayBeInFlight(OpTrait):
    """
    The trait of ops of other dialects whose operands and results may be in flight (not
    yet arrived). Such an op stands for collectives, or holds tensors that no op reads
    yet.
    """


class Waits(OpTrait):
    """The trait of the op that waits until a tensor in flight has arrived."""


class OfOneRank(OpTrait):
    """The trait of ops that occur only in the program of one rank."""


@dataclass(frozen=True)
class Traffic:
    """
    The messages of a collective among the devices of a group, as the simulator prices
    them.

    - `pattern`: `exchange`: every device sends its share of a tensor to each other
      device; `shift`: each device sends its operand to the next; `chain`: the whole
      operand passes along all devices, from or to the root; `parts`: the root sends a
      part to each device, or receives a part from each device;
    - `kind`: the kind of collective as which an exchange is priced; "" for all patterns
      but `exchange`;
    - `of_result`: whether an exchange divides up the result instead of the operand;
    - `rounds`: the number of exchanges, one after the other.
    """

    pattern: Literal["exchange", "shift", "chain", "parts"]
    kind: Literal["", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"] = ""
    of_result: bool = False
    rounds: int = 1


@dataclass(frozen=True)
class Buffers:
    """
    The tensors that take memory a second time while the collectives of a message run.

    - `operands`: whether all operands of the message take memory twice;
    - `results`: the results that take memory twice: `all`, the `others` (all but the
      first), or `none`;
    - `if_copied`: whether a single tensor needs no buffer if its parts are consecutive
      in memory, that is, if it is split or gathered along its first dimension;
    - `last`: whether the buffers live until the last collective of the message, instead
      of from the first one on.
    """

    operands: bool = False
    results: Literal["none", "others", "all"] = "none"
    if_copied: bool = False
    last: bool = False


class CollectiveOp(IRDLOperation):
    """
    Base of all collectives over mesh axes. A new collective states its facts in class
    attributes, and has a function in a module of `distir/runtime`.

    - `axes`: the mesh axes, major to minor.
    - the unit attribute `dist.asynchronous`: devices go on while this op runs on their
      communication streams, and wait at the first use of the result. A function may
      return such a result while it is in flight; then its caller waits. In per-rank
      form, only `collective.wait` or a return may use the result. Not every collective
      can be asynchronous.
    - the integer `dist.bucket`: collectives of a function with the same integer form
      one *bucket*, and travel in one message. The collectives of a bucket are next to
      each other, have the same kind, mesh, axes, element type and reduction, and either
      all or none of the collectives are asynchronous. If a pass deletes some of these
      collectives, the rest still form a bucket. The attribute does not change results.
      Not every collective can be in a bucket.

    Each form of a program has its own ops, derived from this class: see
    `InDistributedForm` and `InRankForm`.
    """

    source = operand_def(TensorType)
    result = result_def(TensorType)
    axes = prop_def(ArrayAttr[StringAttr])

    irdl_options = (ParsePropInAttrDict(),)
    custom_directives = (AxisNames,)
    assembly_format = (
        "$source `over` custom<AxisNames>($axes) attr-dict "
        "`:` type($source) `->` type($result)"
    )

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = False
    """Whether devices can go on with other work while this op runs."""

    CAN_JOIN: ClassVar[bool] = False
    """Whether several ops of this kind can travel in one message."""

    REDUCES: ClassVar[bool] = False
    """
    Whether the op combines terms. The per-rank form names the reduction in `reduction`.
    """

    KEEPS_VALUE: ClassVar[bool] = True
    """Whether the result has the same global value as the operand."""

    IN_PLACE: ClassVar[bool] = False
    """Whether the op works in its result's memory, so that the operand can be freed."""

    TRAFFIC: ClassVar[Traffic | None] = None
    """The messages among the devices, or None if the op sends none."""

    BUFFERS: ClassVar[Buffers] = Buffers()
    """The memory that the op needs besides its operand and its result."""

    TORCH_MODULE: ClassVar[str] = "collectives"
    """The module of `distir/runtime` that implements the op on a rank."""

    TORCH_FUNCTION: ClassVar[str] = ""
    """
    The function in `TORCH_MODULE` that implements the op; "" if it has the op's name.
    """

    def __init__(self, source: SSAValue, axes: Sequence[str], result_type: Attribute):
        # Like IRDL's constructor, which is slow.
        Operation.__init__(
            self,
            operands=[source],
            result_types=[result_type],
            properties={"axes": ArrayAttr([StringAttr(a) for a in axes])},
        )

    @property
    def kind(self) -> str:
        """
        The kind of the collective, which is the same in all forms of a program:
        `all_reduce`, `all_gather`, ...
        """
        return self.name.rpartition(".")[2]

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The mesh axes that the op runs over, major to minor."""
        return tuple(a.data for a in self.axes.data)

    @property
    def reduction_name(self) -> str | None:
        """The reduction `sum`, `max` or `min`, or None if the op does not reduce."""
        raise NotImplementedError

    @property
    def communicators(self) -> Attribute | str | None:
        """
        A key for the groups of devices in which the op runs. The keys of two ops are
        equal if the ops run in the same groups.
        """
        raise NotImplementedError

    @property
    def share(self) -> float:
        """
        The fraction of the elements of the op's tensors that is communicated, from 0 to
        1.
        """
        return 1.0

    @property
    def is_asynchronous(self) -> bool:
        """
        Whether devices go on while this op communicates, and wait only at the first use
        of its result.
        """
        return ASYNCHRONOUS in self.attributes

    @property
    def is_joined(self) -> bool:
        """
        Whether this op travels in one message with the collective right before it.
        """
        bucket = self.attributes.get(BUCKET)
        if bucket is None:
            return False
        before = self.prev_op
        return (
            isinstance(before, CollectiveOp) and before.attributes.get(BUCKET) == bucket
        )

    @property
    def message(self) -> tuple[Attribute | str | bool | None, ...]:
        """A key that is equal for two collectives if they can travel in one message."""
        source = self.source.type
        return (
            self.name,
            self.axes,
            self.communicators,
            self.reduction_name,
            source.element_type if isinstance(source, TensorType) else None,
            self.is_asynchronous,
        )

    def verify_(self) -> None:
        if self.is_asynchronous and not self.CAN_BE_ASYNCHRONOUS:
            raise VerifyException(
                f"{self.name} cannot be asynchronous; remove {ASYNCHRONOUS}"
            )
        if not self.axis_names:
            raise VerifyException(f"{self.name} runs over no axis")
        if len(set(self.axis_names)) != len(self.axis_names):
            raise VerifyException(f"{self.name} names an axis twice")
        if BUCKET in self.attributes:
            self.check_bucket()

    def check_bucket(self) -> None:
        """
        Raises VerifyException if this op must not have `dist.bucket`, or cannot travel
        in one message with the previous collective of its bucket.
        """
        if not self.CAN_JOIN:
            raise VerifyException(
                f"{self.name} cannot travel in one message with another; remove {BUCKET}"
            )
        if not self.is_joined:
            return
        number, before = self.attributes[BUCKET], self.prev_op
        assert isinstance(before, CollectiveOp)
        if before.message != self.message:
            raise VerifyException(
                f"{self.name} has {BUCKET} = {number} like the {before.name} before it, "
                f"and differs from it in kind, axes, mesh, reduction, element type or "
                f"{ASYNCHRONOUS}; give it another number or remove {BUCKET}"
            )
        source = self.source.owner
        if isinstance(source, CollectiveOp) and source in bucket_of(before):
            raise VerifyException(
                f"{self.name} has {BUCKET} = {number}, but its operand comes out of the same "
                f"message; give it another number or remove {BUCKET}"
            )


_Kind = TypeVar("_Kind", bound=CollectiveOp)


def bucket_of(op: _Kind) -> list[_Kind]:
    """
    Returns the collectives that travel in one message with `op`, including `op`, in
    program order. All of these collectives have the same class.
    """
    kind, first = type(op), op
    while first.is_joined and isinstance(first.prev_op, kind):
        first = first.prev_op
    found = [first]
    after = first.next_op
    while isinstance(after, kind) and after.is_joined:
        found.append(after)
        after = after.next_op
    return found


def is_per_rank(op: Operation) -> bool:
    """Whether an op belongs to the program of one rank."""
    return op.has_trait(OfOneRank, value_if_unregistered=False)


def require_waits(arriving: SSAValue) -> None:
    """
    Raises VerifyException if an op other than a wait or a return uses the tensor
    `arriving`, which is in flight. Calls of functions with the attribute `torch.repeat`
    may take the tensor; the same rule then holds for its uses inside of these
    functions.
    """
    for use in arriving.uses:
        callee = _repeat(use.operation)
        if callee is not None:
            require_waits(callee.body.block.args[use.index])
        elif not (
            isinstance(use.operation, ReturnOp)
            or use.operation.has_trait(Waits, value_if_unregistered=False)
            or use.operation.has_trait(MayBeInFlight)
        ):
            raise VerifyException(
                f"{use.operation.name} uses a tensor that is still on its way; "
                f"collective.wait for it first"
            )
    users = [use.operation for use in arriving.uses]
    if len(users) > 1 and all(isinstance(op, ReturnOp) for op in users):
        raise VerifyException(
            "a tensor that is on its way is returned twice; collective.wait for it first"
        )


def _repeat(op: Operation) -> FuncOp | None:
    """
    Returns the function that `op` calls if this function has the attribute
    `torch.repeat`, else None.
    """
    if not isinstance(op, CallOp):
        return None
    callee = SymbolTable.lookup_symbol(op, op.callee)
    return callee if isinstance(callee, FuncOp) and is_repeat(callee) else None


def is_repeat(op: Operation | None) -> bool:
    return op is not None and REPEAT in op.attributes
