"""
The base of collectives: their distributed and per-rank forms, messages, buffers,
layouts of operands and results, and asynchronous results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
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
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import (
    EffectInstance,
    MemoryEffect,
    MemoryEffectKind,
    OpTrait,
    SymbolTable,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist import Layout, Shard, layout_of
from distir.dialects.dist_attributes import ASYNCHRONOUS, BUCKET

I64 = IntegerAttr.constr(i64)


class _MeetsOthers(MemoryEffect):
    """
    The effects of collectives on other devices. In the distributed form, which is one
    program for all devices, there are none. In the per-rank form, a collective must
    stay even if its result is unused, because the other ranks of its group run it too.
    """

    @classmethod
    def get_effects(cls, op: Operation) -> frozenset[EffectInstance]:
        """Returns the effects that generic passes must assume for an op."""
        return _MEETING if is_per_rank(op) else _NOTHING


_MEETING = frozenset((EffectInstance(MemoryEffectKind.WRITE),))
_NOTHING = frozenset[EffectInstance]()


REPEAT = "torch.repeat"
"""
The attribute of a function that exists only to make the text of a program shorter. Like
the code around its calls, it may take tensors that are still in flight and wait for
them.
"""


class MayBeInFlight(OpTrait):
    """
    The trait of ops of other dialects whose operands and results may be in flight,
    because they stand for collectives or hold tensors that are not read yet.
    """


class Waits(OpTrait):
    """The trait of the op that waits for a tensor that is in flight."""


class OfOneRank(OpTrait):
    """The trait of ops that occur only in the program of one rank."""


@dataclass(frozen=True)
class Traffic:
    """
    The messages of a collective among the devices of a group, as the simulator prices
    them.

    - `pattern`: `exchange`: every device sends its share of a tensor to each other
      device; `shift`: each device sends its operand to the next; `chain`: the whole
      operand passes along all devices, from or to the root; `parts`: the root sends
      each device its part, or receives it;
    - `kind`: the collective that an exchange is timed as; "" for other patterns;
    - `of_result`: whether an exchange divides up the result instead of the operand;
    - `rounds`: the number of such exchanges.
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
    - `if_copied`: whether a single tensor needs no buffer if it travels as it lies in
      memory, that is, if it is split or gathered along its first dimension;
    - `last`: whether the buffers live until the last collective of the message, instead
      of from the first one on.
    """

    operands: bool = False
    results: Literal["none", "others", "all"] = "none"
    if_copied: bool = False
    last: bool = False


class CollectiveOp(IRDLOperation):
    """
    Base of all collectives over mesh axes. A new collective states its facts in the
    class attributes below, and has a function in a module of `distir/runtime`.

    - `axes`: the mesh axes, major to minor.
    - the unit attribute `dist.asynchronous`: devices go on while this op runs on their
      communication streams, and wait at the first use of the result. A function may
      return such a result while it is in flight; then its caller waits. In per-rank
      form, the result may only be waited for (`collective.wait`) or returned. Not every
      collective can be asynchronous.
    - the integer `dist.bucket`: collectives of a function with the same integer form
      one *bucket*, and travel in one message. They are next to each other, have the
      same kind, mesh, axes, element type and monoid, and all are asynchronous or none
      is. If a pass deletes some of them, the others still form a bucket. The attribute
      does not change results. Not every collective can be in a bucket.
    - per-rank form only: `group` (global ranks in order), `dim` (the dimension that is
      gathered, scattered or sliced; for `all_to_all` the one that is gathered),
      `split_dim` (`all_to_all`: the dimension that is split), `run` / `split_run` (run
      lengths on these dimensions; absent for contiguous splits), `reduction` (monoid).
    """

    source = operand_def(TensorType)
    result = result_def(TensorType)
    axes = prop_def(ArrayAttr[StringAttr])
    group = opt_prop_def(DenseArrayBase.constr(i64))
    reduction = opt_prop_def(StringAttr)
    dim = opt_prop_def(I64)
    run = opt_prop_def(I64)
    split_dim = opt_prop_def(I64)
    split_run = opt_prop_def(I64)

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(_MeetsOthers())
    assembly_format = (
        "$source `over` $axes attr-dict `:` type($source) `->` type($result)"
    )

    NEEDED: ClassVar[tuple[str, ...]] = ()
    """Properties that this op must have in the per-rank form."""

    PER_RANK: ClassVar[tuple[str, ...]] = (
        *("group", "reduction", "dim", "run", "split_dim", "split_run", "root"),
    )
    """
    Properties that only the per-rank form has. In the distributed form, layouts
    determine them.
    """

    CAN_BE_ASYNCHRONOUS: ClassVar[bool] = False
    """Whether devices can go on with other work while this op runs."""

    CAN_JOIN: ClassVar[bool] = False
    """Whether several ops of this kind can travel in one message."""

    REDUCES: ClassVar[bool] = False
    """
    Whether the op reduces terms by a monoid. The per-rank form names it in `reduction`.
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

    def __init__(
        self,
        source: SSAValue,
        axes: Sequence[str],
        result_type: Attribute,
        *,
        group: Sequence[int] | None = None,
        reduction: str | None = None,
        dim: int | None = None,
        run: int | None = None,
        split_dim: int | None = None,
        split_run: int | None = None,
    ):
        properties: dict[str, Attribute] = {
            "axes": ArrayAttr([StringAttr(a) for a in axes])
        }
        if group is not None:
            properties["group"] = DenseArrayBase.from_list(i64, list(group))
        if reduction is not None:
            properties["reduction"] = StringAttr(reduction)
        numbers = {
            "dim": dim,
            "run": run,
            "split_dim": split_dim,
            "split_run": split_run,
        }
        for name, number in numbers.items():
            if number is not None:
                properties[name] = IntegerAttr(number, i64)
        # Like IRDL's constructor, which is slow.
        Operation.__init__(
            self, operands=[source], result_types=[result_type], properties=properties
        )

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The mesh axes that the op runs over, major to minor."""
        return tuple(a.data for a in self.axes.data)

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """
        The global ranks that take part, in the per-rank form; None in the distributed form.
        """
        if self.group is None:
            return None
        return tuple(int(r) for r in self.group.get_values())

    @property
    def is_per_rank(self) -> bool:
        return self.group is not None

    @property
    def share(self) -> float:
        """The fraction of the tensors that travels, from 0 to 1."""
        return 1.0

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        """
        Returns the result layouts that this op can produce from an operand with layout
        `before` and `rank` dimensions (distributed form). Raises VerifyException if the
        op cannot take an operand with this layout.
        """
        raise NotImplementedError

    @property
    def is_asynchronous(self) -> bool:
        """
        Whether devices go on while this op communicates. They wait where its result is
        used.
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
        """A key that is equal for collectives that can travel in one message."""
        layout = layout_of(self.source)
        source = self.source.type
        return (
            self.name,
            self.axes,
            None if layout is None else layout.mesh,
            self.group,
            self._monoid(layout),
            source.element_type if isinstance(source, TensorType) else None,
            self.is_asynchronous,
        )

    def _monoid(self, layout: Layout | None) -> str | None:
        """Returns the monoid of the reduction, or None if the op does not reduce."""
        if layout is None:
            return None if self.reduction is None else self.reduction.data
        return dict(layout.partial).get(self.axis_names[0])

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
        before, after = layout_of(self.source), layout_of(self.result)
        if self.is_per_rank:
            if before is not None or after is not None:
                raise VerifyException(
                    f"{self.name} is in per-rank form (it has a group), but its types have "
                    f"layouts, from which follows who takes part; remove `group`"
                )
            for name in self.NEEDED:
                if name not in self.properties:
                    raise VerifyException(
                        f"{self.name} in per-rank form needs `{name}`"
                    )
            if self.is_asynchronous:
                require_waits(self.result)
            return
        extra = [name for name in self.PER_RANK if name in self.properties]
        if extra:
            raise VerifyException(
                f"{self.name} has `{extra[0]}`, which belongs to the per-rank form; in a "
                f"distributed program it follows from the layouts, so remove it"
            )
        if before is None or after is None:
            raise VerifyException(
                f"{self.name} needs a #dist.layout on both sides, or a `group`"
            )
        source, result = self.source.type, self.result.type
        assert isinstance(source, TensorType) and isinstance(result, TensorType)
        if source.shape != result.shape or source.element_type != result.element_type:
            raise VerifyException(
                f"{self.name} keeps the global shape and element type, but turns "
                f"{source} into {result}"
            )
        expected = self.expect(before, source.get_num_dims())
        if after not in expected:
            choices = " or ".join(str(layout) for layout in expected)
            raise VerifyException(
                f"{self.name} over {_names(self.axis_names)}: expected result layout "
                f"{choices}, got {after}"
            )

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

    def _require_partial(self, before: Layout) -> str:
        """
        Returns the monoid with which the operand is partial over every axis of this op.
        Raises VerifyException unless there is exactly one.
        """
        monoids = {dict(before.partial).get(axis) for axis in self.axis_names}
        if len(monoids) != 1 or None in monoids:
            raise VerifyException(
                f"{self.name}: expected an operand that is partial over "
                f"{_names(self.axis_names)} with one reduction, got {before}"
            )
        (monoid,) = monoids
        assert monoid is not None
        return monoid

    def _ending_dims(self, before: Layout, rank: int) -> list[int]:
        """
        Returns the dimensions whose innermost axes are exactly the axes of this op.
        Raises VerifyException if there are none.
        """
        n = len(self.axis_names)
        dims = [
            i
            for i, dim in enumerate(before.full_dims(rank))
            if tuple(s.axis for s in dim[-n:]) == self.axis_names
        ]
        if not dims:
            raise VerifyException(
                f"{self.name}: expected an operand with a dimension whose innermost "
                f"axes are {_names(self.axis_names)}, got {before}"
            )
        return dims

    def _require_free(self, before: Layout) -> None:
        """
        Raises VerifyException unless the operand is replicated over the axes of this
        op.
        """
        used = {*before.split_axes, *before.partial_axes} & set(self.axis_names)
        if used:
            raise VerifyException(
                f"{self.name}: expected an operand that is replicated over "
                f"{_names(self.axis_names)}, got {before}"
            )

    def _splits(self, layout: Layout, rank: int) -> list[Layout]:
        """
        Returns one layout per dimension: `layout` with the axes of this op appended to
        that dimension. Run lengths are taken from the declared result.
        """
        after = layout_of(self.result)
        if after is None:
            return []
        n = len(self.axis_names)
        found: list[Layout] = []
        for i in range(rank):
            tail = after.full_dims(rank)[i][-n:] if len(after.dims) in (0, rank) else ()
            if tuple(s.axis for s in tail) != self.axis_names:
                tail = tuple(Shard(axis) for axis in self.axis_names)
            found.append(layout.with_dim(i, (*layout.dim(i), *tail), rank))
        return found


def bucket_of(op: CollectiveOp) -> list[CollectiveOp]:
    """
    Returns the collectives that travel in one message with `op`, including `op`, in
    program order.
    """
    first = op
    while first.is_joined and isinstance(first.prev_op, CollectiveOp):
        first = first.prev_op
    found = [first]
    after = first.next_op
    while isinstance(after, CollectiveOp) and after.is_joined:
        found.append(after)
        after = after.next_op
    return found


def _names(axes: Sequence[str]) -> str:
    return "{" + ", ".join(axes) + "}"


def is_per_rank(op: Operation) -> bool:
    """Whether an op belongs to the program of one rank."""
    if isinstance(op, CollectiveOp):
        return op.is_per_rank
    return op.has_trait(OfOneRank, value_if_unregistered=False)


def require_waits(arriving: SSAValue) -> None:
    """
    Raises VerifyException unless the tensor `arriving`, which is in flight, is only
    waited for or returned. Calls of functions with the attribute `torch.repeat` may
    take the tensor; the same rule then holds for its uses inside of these functions.
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
    Returns the function that an op calls if it has the attribute `torch.repeat`, else
    None.
    """
    if not isinstance(op, CallOp):
        return None
    callee = SymbolTable.lookup_symbol(op, op.callee)
    return callee if isinstance(callee, FuncOp) and is_repeat(callee) else None


def is_repeat(op: Operation | None) -> bool:
    return op is not None and REPEAT in op.attributes
