"""
A cost model for meshes without a cluster.

A cost counts floating-point operations on one device, and bytes at a low price. A user
who asks for a 4-way split wants the work split 4 ways where possible, and then as
little communication as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation

from distir.dialects.dist import Layout
from distir.planning.costs.cost_model import CostModel
from distir.planning.graph.strategies import LayoutStrategy
from distir.sharding.exchanges import state_exchange
from distir.sharding.placement import (
    PartialPlacement,
    Placement,
    ReplicatedPlacement,
    SplitPlacement,
)
from distir.sharding.prices import (
    PRICE_PER_BYTE_SENT,
    PRICE_PER_BYTE_TOUCHED,
    PRICE_PER_MESSAGE,
)
from distir.sharding.reshard import ReshardStep, StepKind, bytes_moved
from distir.sharding.rule import Rule

PREFERENCE = 1e-6
"""The relative change of a cost that breaks ties between equal plans."""

GATHER_PENALTY = 1.25
"""
The factor by which the price of gathering exceeds that of its bytes. It makes values
stay whole in one of several equal plans.
"""

_STEPS: dict[tuple[type[Placement], type[Placement]], StepKind] = {
    (ReplicatedPlacement, SplitPlacement): "slice",
    (PartialPlacement, SplitPlacement): "reduce_scatter",
    (PartialPlacement, ReplicatedPlacement): "all_reduce",
    (SplitPlacement, ReplicatedPlacement): "all_gather",
    (SplitPlacement, SplitPlacement): "all_to_all",
}
"""The collective that moves a value from one class of placement to another."""


class UnitCosts(CostModel):
    """
    The cost model of a mesh without a cluster. A cost is the floating-point operations
    per device, plus a low price per byte sent, plus a much lower price per byte read or
    written. Cutting a part out of a replicated value costs nearly nothing.

    `work`, `preferred` and `move` price the effect of one mesh axis on an op or a
    value, for planning one axis after the other.
    """

    unit = "operations"
    scale = 1.0

    def op(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> float:
        """
        Returns the operations of an op on each device, plus the price of the bytes that
        it reads, writes and communicates.
        """
        operands, results = strategy.operands, strategy.results
        touched = sum(self._sizes(op.operands, operands))
        touched += sum(self._sizes(op.results, results))
        parts = self._parts(rule, operands) if rule.flops else {}
        exchanged = self.exchange(op, operands)
        shards = (s for x in (*operands, *results) for dim in x.dims for s in dim)
        return self.preferred(
            self.work(rule.flops / prod(parts.values()), touched) + exchanged,
            late=any(x.partial for x in operands),
            runs=any(s.run is not None for s in shards),
        )

    def step(
        self, type_: TensorType[Attribute], before: Layout, step: ReshardStep
    ) -> float:
        """Returns the price of the bytes that a collective sends."""
        sizes = self.bytes(type_, before), self.bytes(type_, step.layout)
        parts = prod(self.mesh.size(axis) for axis in step.axes)
        return self._sent(step.kind, *sizes, parts)

    def exchange(self, op: Operation, operands: Sequence[Layout]) -> float:
        """
        Returns the price of the communication inside an op while it computes: a price
        per byte and a price per message. Returns 0 if the op does not communicate.
        """
        found = state_exchange(op, operands, self.mesh)
        if found is None:
            return 0.0
        parts = prod(self.mesh.size(axis) for axis in found.axes)
        whole, part = found.size, found.size / parts
        total = 0.0
        for kind, times in found.kinds:
            sizes = (part, whole) if kind == "all_gather" else (whole, part)
            if kind == "all_to_all":
                sizes = (whole, whole)
            total += times * (PRICE_PER_MESSAGE + self._sent(kind, *sizes, parts))
        return total

    def work(self, flops: float, touched: float) -> float:
        """
        Returns the cost of `flops` operations and `touched` bytes, read or written, on
        one device.
        """
        return flops + PRICE_PER_BYTE_TOUCHED * touched

    def preferred(self, work: float, *, late: bool, runs: bool) -> float:
        """
        Returns the cost `work`, changed slightly to break ties. The cost becomes lower
        if the op lets partial values pass (`late`), so that sums are reduced late. It
        becomes higher if the op works on block-cyclic splits (`runs`), because
        contiguous splits are simpler.
        """
        if late:
            return work * (1 - PREFERENCE)
        return work * (1 + PREFERENCE if runs else 1)

    def move(self, have: Placement, want: Placement, size: float, parts: int) -> float:
        """
        Returns the cost of moving a value from placement `have` to placement `want` on
        an axis of `parts` devices. `size` is the size in bytes of the value on one
        device before this axis splits it. Returns infinity if no collective makes this
        move.
        """
        if have == want:
            return 0.0
        kind = _STEPS.get((type(have), type(want)))
        if kind is None:
            return inf
        part = size / parts
        before, after = (
            part if isinstance(p, SplitPlacement) else size for p in (have, want)
        )
        return self._sent(kind, before, after, parts)

    def gradient(self, flops: float, parts: int) -> float:
        """
        Returns the additional cost in the backward pass if every device keeps the
        parameter of a contraction whole but uses only a part of it. Each device then
        computes the whole gradient of the parameter instead of one of `parts` parts.
        `flops` is the number of operations of the contraction.
        """
        return flops * (1 - 1 / parts)

    def _sent(self, kind: StepKind, before: float, after: float, parts: int) -> float:
        """
        Returns the price of a collective of kind `kind` among `parts` devices. `before`
        and `after` are the bytes of the value on a device before and after the
        collective.
        """
        match kind:
            case "slice":
                # Of equal plans, prefer values that are split from the start: they take
                # less memory.
                return PREFERENCE * self._sent("all_gather", after, before, parts)
            case "all_gather" | "all_to_all":
                penalty = GATHER_PENALTY
            case _:
                penalty = 1.0
        return PRICE_PER_BYTE_SENT * penalty * bytes_moved(kind, before, after, parts)
