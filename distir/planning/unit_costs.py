"""
What ops and changes of layout cost.

`UnitCosts` knows no cluster: it counts floating-point operations on one device, and bytes
at a low price. Whoever asks for a 4-way split wants the work split 4 ways where that is
possible, and then as little communication as possible.
"""

from __future__ import annotations

from distir.planning.axes.axis_op import AxisOp, AxisStrategy
from distir.sharding.placement import Placement
from distir.sharding.prices import gather_price, move_price, reduce_price

PREFERENCE = 1e-6
"""By what fraction of itself a cost is changed so that of equal plans one is meant."""


class UnitCosts:
    """
    Floating-point operations per device, plus a low price per byte sent, plus a much lower
    one per byte touched. `parts` is the size of the mesh axis. Taking a part of what is
    whole costs nothing. Unlike a `CostModel`, it speaks of one axis alone.
    """

    def __init__(self, parts: int):
        self.parts = parts

    def op(self, strategy: AxisStrategy) -> float:
        """An op's work on one device, and what the parts of its decomposition send."""
        if strategy.option.linear is not None:
            # Sums are reduced late.
            return strategy.work * (1 - PREFERENCE)
        # Contiguous splits are simpler than others.
        return strategy.work * (1 if strategy.option.run is None else 1 + PREFERENCE)

    def move(self, have: Placement, want: Placement, size: float) -> float:
        """
        The cost of bringing a value of `size` bytes (on one device, whole on this axis) from
        one placement to another; infinite where no communication does that.
        """
        if have == want:
            return 0.0
        match have.kind, want.kind:
            case "whole", "split":
                # What is split from the start takes less memory.
                return PREFERENCE * gather_price(size, self.parts)
            case "partial", "split":
                return reduce_price(size, self.parts) / 2
            case _:
                return move_price(have.kind, want.kind, size, self.parts)

    def result(self, have: Placement, size: float) -> float:
        """The cost of giving a result of the program, of `size` bytes, as a whole."""
        return gather_price(size, self.parts) if have.kind == "split" else 0.0

    def gradient(self, info: AxisOp) -> float:
        """
        The cost of keeping a contraction's parameter whole on every device, which cuts its
        part out of it: in the backward each computes the gradient of the whole.
        """
        return info.flops * (1 - 1 / self.parts)
