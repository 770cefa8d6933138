"""Collectives in a distributed program, where tensors have layouts."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute
from xdsl.irdl import traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import Layout, Shard, layout_of

_OF_ONE_RANK = (
    *("group", "reduction", "dim", "run", "blocks"),
    *("split_dim", "split_run", "split_blocks", "root"),
)
"""Attributes that only the counterpart in per-rank form has: here, layouts say it."""


class InDistributedForm(CollectiveOp):
    """
    Base of the collectives of a distributed program. The layouts of the operand and the
    result determine the work of the op and its groups. The verifier rejects layouts
    that do not fit.
    """

    traits = traits_def(Pure())

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        """
        Returns the result layouts that this op can produce from an operand with layout
        `before` and `rank` dimensions. Raises VerifyException if the op cannot take an
        operand with this layout.
        """
        raise NotImplementedError

    @property
    def reduction_name(self) -> str | None:
        layout = layout_of(self.operands[0])  # by index, as names are slow
        if layout is None or not self.axis_names:
            return None
        return dict(layout.partial).get(self.axis_names[0])

    @property
    def communicators(self) -> Attribute | str | None:
        layout = layout_of(self.operands[0])
        return None if layout is None else layout.mesh

    def verify_(self) -> None:
        super().verify_()
        before, after = layout_of(self.source), layout_of(self.result)
        known = self.properties.keys() | self.attributes.keys()
        extra = [name for name in _OF_ONE_RANK if name in known]
        if extra:
            advice = (
                f"remove it, or write collective.rank.{self.kind}, which is the op of "
                f"one rank's program"
                if before is None and after is None
                else "in a distributed program it follows from the layouts, so remove it"
            )
            raise VerifyException(
                f"{self.name} has `{extra[0]}`, which belongs to the per-rank form; "
                f"{advice}"
            )
        if before is None or after is None:
            raise VerifyException(
                f"{self.name} needs a #dist.layout on both sides; the op of one rank's "
                f"program is collective.rank.{self.kind}"
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

    def require_partial(self, before: Layout) -> str:
        """
        Returns the reduction (`sum`, `max` or `min`) of an operand with layout `before`
        that is partial over every axis of this op. Raises VerifyException unless there
        is exactly one such reduction.
        """
        reductions = {dict(before.partial).get(axis) for axis in self.axis_names}
        if len(reductions) != 1 or None in reductions:
            raise VerifyException(
                f"{self.name}: expected an operand that is partial over "
                f"{_names(self.axis_names)} with one reduction, got {before}"
            )
        (reduction,) = reductions
        assert reduction is not None
        return reduction

    def ending_dims(self, before: Layout, rank: int) -> list[int]:
        """
        Returns the dimensions of a tensor with layout `before` whose innermost axes are
        exactly the axes of this op. Raises VerifyException if there is no such
        dimension.
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

    def require_free(self, before: Layout) -> None:
        """
        Raises VerifyException unless an operand with layout `before` is replicated over
        the axes of this op.
        """
        used = {*before.split_axes, *before.partial_axes} & set(self.axis_names)
        if used:
            raise VerifyException(
                f"{self.name}: expected an operand that is replicated over "
                f"{_names(self.axis_names)}, got {before}"
            )

    def splits(self, layout: Layout, rank: int) -> list[Layout]:
        """
        Returns one layout per dimension: `layout` with the axes of this op appended to
        that dimension. Whether a split is block-cyclic, and the length of its runs, is
        taken from the declared result type.
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


def _names(axes: Sequence[str]) -> str:
    return "{" + ", ".join(axes) + "}"
