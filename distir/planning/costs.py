"""What strategies and changes of layout cost on a cluster, as searches ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xdsl.ir import Attribute, Operation

from distir.dialects.dist import Layout
from distir.sharding.rule import Rule


class CostModel(Protocol):
    """Seconds and bytes on the devices of a mesh, by the cost model of the simulator."""

    def op(
        self,
        op: Operation,
        rule: Rule,
        operands: Sequence[Layout],
        results: Sequence[Layout],
    ) -> float:
        """Of an op whose operands and results are laid out like that."""
        ...

    def reshard(self, type_: Attribute, before: Layout, after: Layout) -> float:
        """
        Of bringing a value of that (sequential) type from one layout to another; infinite
        where no communication does that.
        """
        ...

    def bytes(self, type_: Attribute, layout: Layout) -> int:
        """Of a value of that (sequential) type on each device."""
        ...

    def held(self, type_: Attribute, layout: Layout) -> float:
        """
        Bytes that a value of that (sequential) type takes of a device's memory while it
        lives: those of each micro-batch that is under way, or its share of a device if the
        devices of a pipeline divide values between them.
        """
        ...

    def argument(self, type_: Attribute, layout: Layout) -> float:
        """Seconds until an argument that comes like that is there as ops take it."""
        ...

    def workspace(
        self,
        op: Operation,
        rule: Rule,
        operands: Sequence[Layout],
        results: Sequence[Layout],
    ) -> int:
        """Bytes that an op needs besides its operands and results while it runs."""
        ...

    def is_view(self, op: Operation) -> bool:
        """Whether an op's result is its first operand's memory."""
        ...
